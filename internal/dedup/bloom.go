package dedup

import (
	"sync"

	"github.com/bits-and-blooms/bloom/v3"
)

// falsePositives is how often the filter is wrong about a message it never saw: one read too many in a hundred, for 1.2 bytes a
// message.
const falsePositives = 0.01

// Filter remembers messages in little memory, to spare the insert that the index would refuse. It decides nothing: "maybe seen"
// costs one read, and a message it has forgotten costs one refused insert. So it may be empty after a start, and may be left out.
type Filter struct {
	size int // messages in a generation

	mu         sync.Mutex
	young, old *bloom.BloomFilter
	n          int // in the young generation
}

// NewFilter makes a filter that remembers the last size messages at least, and twice as many at most.
func NewFilter(size int) *Filter {
	f := &Filter{size: size}
	f.young, f.old = f.empty(), f.empty()
	return f
}

func (f *Filter) empty() *bloom.BloomFilter {
	return bloom.NewWithEstimates(uint(f.size), falsePositives)
}

// maybe reports whether the message may have a row. No: it has none, or the filter has forgotten it.
func (f *Filter) maybe(r Record) bool {
	if f == nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.young.TestString(subject(r)) || f.old.TestString(subject(r))
}

// add remembers a message whose row has been committed: before, a rollback would leave the filter knowing more than the table.
func (f *Filter) add(r Record) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.n == f.size { // fuller, it would say "maybe" ever more often
		f.young, f.old, f.n = f.empty(), f.young, 0
	}
	f.young.AddString(subject(r))
	f.n++
}
