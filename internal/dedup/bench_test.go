package dedup

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"testing"

	"example.com/oncepay/internal/outbox"
)

// What one message costs, by the share of repeats: the insert alone, a look before each insert, and a look where the Bloom filter
// says "maybe". docs/design.md has the table and what follows from it.
func BenchmarkDedup(b *testing.B) {
	f := newFixture(b)
	f.Consumers[0].Handle = func(context.Context, *sql.Tx, outbox.Stored) (string, error) { return "applied", nil }
	last := 0
	for _, way := range []struct {
		name   string
		filter func() *Filter
	}{
		{"insert-first", func() *Filter { return nil }},
		{"select-first", alwaysMaybe},
		{"bloom", func() *Filter { return NewFilter(100_000) }},
	} {
		for _, repeats := range []int{0, 10, 50, 90, 99} {
			b.Run(fmt.Sprintf("%s/%d%%", way.name, repeats), func(b *testing.B) {
				f.Filter = way.filter()
				random := rand.New(rand.NewPCG(1, 2))
				var known []outbox.Stored
				next := func(fresh bool) outbox.Stored {
					if !fresh {
						return known[random.IntN(len(known))]
					}
					last++
					known = append(known, outbox.Stored{ID: fmt.Sprint("m", last), Topic: topic, Key: orderKey})
					return known[len(known)-1]
				}
				for range 100 {
					f.deliver(next(true))
				}
				for b.Loop() {
					f.deliver(next(random.IntN(100) >= repeats))
				}
			})
		}
	}
}
