package limits

// Capacity is what one replica takes at once, as its engine tells.
type Capacity struct {
	// KVTokens is its KV cache's size; 0: unknown.
	KVTokens int
	// MaxRunning is its running limit; 0: unknown.
	MaxRunning int
}

// Derived are the numbers that limits.mode: auto puts in force for a model.
type Derived struct {
	// Concurrency is how many requests the replicas run at once.
	Concurrency int `json:"concurrency"`
	// MaxLength is the length of the queue, in all and for one key.
	MaxLength int `json:"max_length"`
}

const (
	// autoRunning is taken of a replica that does not tell its running limit.
	autoRunning = 256
	// autoTokens is what a running request holds of the KV cache at least.
	autoTokens = 1024
	// autoQueue is how many may wait for each that runs. Time bounds the wait
	// (max_wait); the length only bounds the memory, so it is generous.
	autoQueue = 16
	// autoLeast and autoMost bound the queue's length.
	autoLeast, autoMost = 100, 100_000
)

// Auto derives the queue and the concurrency of a model from its replicas: a
// replica runs its running limit, or fewer where its KV cache holds less than
// autoTokens for each, and for each that runs autoQueue may wait.
func Auto(replicas []Capacity) Derived {
	var d Derived
	for _, c := range replicas {
		n := c.MaxRunning
		if n <= 0 {
			n = autoRunning
		}
		if c.KVTokens > 0 {
			n = min(n, max(1, c.KVTokens/autoTokens))
		}
		d.Concurrency += n
	}
	d.MaxLength = min(autoMost, max(autoLeast, autoQueue*d.Concurrency))
	return d
}
