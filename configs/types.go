package configs

// Size is a number of bytes, written as 64MiB, 16KiB or 1048576.
type Size int64

// Secret is a string that prints as "[redacted]".
type Secret string
