package router

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func keyOf(write func(*KeyBuilder)) Key {
	b := NewKeyBuilder(0, 0)
	b.Reset("m", "", "")
	write(b)
	return b.Key()
}

func TestKeyDoesNotDependOnHowTheTextIsCut(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	text := make([]byte, 50000)
	for i := range text {
		text[i] = byte(rnd.Uint32())
	}
	want := keyOf(func(b *KeyBuilder) { b.Write(text) })
	// 195 units: 64 blocks of one, 32 of two up to 128, 16 of four up to 192.
	if n := len(want.Hashes); n != 64+32+16 {
		t.Fatalf("50000 bytes gave %d hashes, want %d", n, 64+32+16)
	}
	for range 50 {
		var cuts []int
		got := keyOf(func(b *KeyBuilder) {
			for rest := text; len(rest) > 0; {
				n := min(len(rest), 1+rnd.IntN(700))
				if cuts = append(cuts, n); n%2 == 0 {
					b.Write(rest[:n])
				} else {
					b.WriteString(string(rest[:n]))
				}
				rest = rest[n:]
			}
		})
		if !slices.Equal(got.Hashes, want.Hashes) || got.Bytes != want.Bytes {
			t.Fatalf("cut as %v: got %d bytes, %x; want %d bytes, %x", cuts, got.Bytes, got.Hashes, want.Bytes, want.Hashes)
		}
	}
}

func TestBlocksGrowWithDepth(t *testing.T) {
	n := 0
	for units := range 1 << 17 {
		if !BlockEnds(units) {
			continue
		}
		if n++; unitsAt(n) != units {
			t.Fatalf("block %d ends after %d units and after %d", n, units, unitsAt(n))
		}
		size, before := blockUnits(n-1), unitsAt(n-1)
		if before+size != units {
			t.Fatalf("block %d has %d units from %d to %d", n, size, before, units)
		}
		if size > 1 && size*coarseness > before {
			t.Fatalf("a block of %d units after %d, want a %dth at most", size, before, coarseness)
		}
	}
	if n > 500 {
		t.Errorf("%d blocks for %d units", n, 1<<17)
	}
}

func TestKeyOfAnExtensionBeginsWithTheKey(t *testing.T) {
	text := strings.Repeat("All work and no play. ", 100)
	short := keyOf(func(b *KeyBuilder) { b.WriteString(text[:1500]) })
	long := keyOf(func(b *KeyBuilder) { b.WriteString(text) })
	other := keyOf(func(b *KeyBuilder) { b.WriteString("X" + text[1:]) })
	if !slices.Equal(long.Hashes[:len(short.Hashes)], short.Hashes) {
		t.Errorf("the extension's key does not begin with the prefix's: %x, %x", long.Hashes, short.Hashes)
	}
	if last := len(long.Hashes) - 1; long.Hashes[last] == other.Hashes[last] {
		t.Errorf("a change in the first byte left the hash of block %d alone", last)
	}
}

func TestKeysOfModelsAdaptersAndSaltsShareNothing(t *testing.T) {
	seen := map[uint64]string{}
	for _, s := range [][3]string{{"m", "", ""}, {"n", "", ""}, {"m", "l", ""}, {"m", "", "l"}, {"ml", "", ""}, {"", "m", "l"}} {
		b := NewKeyBuilder(0, 0)
		b.Reset(s[0], s[1], s[2])
		b.Write(make([]byte, 256))
		h := b.Key().Hashes[0]
		if name := strings.Join(s[:], "|"); seen[h] != "" {
			t.Errorf("%q and %q have the same first block", name, seen[h])
		} else {
			seen[h] = name
		}
	}
}

func TestTokenIDsOfEqualLengthAreNotEqual(t *testing.T) {
	a := keyOf(func(b *KeyBuilder) { b.Tokens(make([]uint64, 64)) })
	c := keyOf(func(b *KeyBuilder) {
		for i := range uint64(64) {
			b.Token(i)
		}
	})
	if len(a.Hashes) != 1 || len(c.Hashes) != 1 || a.Bytes != 256 {
		t.Fatalf("64 ids: %d and %d hashes of %d bytes, want one block of 256", len(a.Hashes), len(c.Hashes), a.Bytes)
	}
	if a.Hashes[0] == c.Hashes[0] {
		t.Error("different ids, equal hashes")
	}
}

func TestImagesCountTheirTokensNotTheirLength(t *testing.T) {
	one := keyOf(func(b *KeyBuilder) { b.Media(7) })
	two := keyOf(func(b *KeyBuilder) { b.Media(8) })
	if one.Bytes != 4000 || len(one.Hashes) != 4000/256 {
		t.Errorf("an image: %d bytes, %d blocks; want 4000, %d", one.Bytes, len(one.Hashes), 4000/256)
	}
	if one.Hashes[0] == two.Hashes[0] {
		t.Error("different images, equal hashes")
	}
}

func TestKeyBuilderAllocatesNothingOnceWarm(t *testing.T) {
	b, text := NewKeyBuilder(0, 0), bytes.Repeat([]byte("0123456789"), 10000)
	got := testing.AllocsPerRun(20, func() {
		b.Reset("m", "", "")
		b.Write(text)
		if len(b.Key().Hashes) == 0 {
			t.Fatal("no hashes")
		}
	})
	if got != 0 {
		t.Errorf("100 kB prompt: %v allocations, want 0", got)
	}
}

func BenchmarkKey(b *testing.B) {
	kb, text := NewKeyBuilder(0, 0), bytes.Repeat([]byte("0123456789"), 12800)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		kb.Reset("m", "", "")
		kb.Write(text)
	}
}
