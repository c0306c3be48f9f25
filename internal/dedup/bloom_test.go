package dedup

import (
	"fmt"
	"testing"

	"github.com/bits-and-blooms/bloom/v3"

	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/outbox"
)

// alwaysMaybe is a filter that takes every message for seen.
func alwaysMaybe() *Filter {
	f := NewFilter(1)
	f.young, f.size = bloom.New(1, 1).AddString("x"), -1 // one bit, which is set; never renewed
	return f
}

// forget makes the filter forget all, as a restart does.
func (f *fixture) forget() { f.Filter.young, f.Filter.old = f.Filter.empty(), f.Filter.empty() }

// The database is the judge: a filter that says "maybe" to all, one that forgets all, and none give the same result.
func TestAFilterThatIsWrongChangesNoResult(t *testing.T) {
	f := newFixture(t)
	for name, filter := range map[string]*Filter{"none": nil, "right": NewFilter(100), "maybe to all": alwaysMaybe(), "forgets all": NewFilter(100)} {
		t.Run(name, func(t *testing.T) {
			f.reset(t)
			f.Filter = filter
			list := f.owe("m1", "m2", "m3")
			f.failing(func(m outbox.Stored) error {
				if m.ID == "m3" {
					return fmt.Errorf("broken")
				}
				return nil
			})
			for range 3 {
				for _, m := range list {
					f.deliver(m)
					if name == "forgets all" {
						f.forget()
					}
				}
			}
			f.wantOnce(list[0])
			f.wantOnce(list[1])
			f.wantTries("m3", 1)
			f.failing(nil)
			f.advance(firstPause)
			f.retry()
			f.deliver(list[2])
			f.wantOnce(list[2])
			c := f.Consumers[0]
			if p, r, x := hits(f.Service, c, metrics.Passed), hits(f.Service, c, metrics.Replayed), hits(f.Service, c, metrics.Blocked); p != 3 || r != 5 || x != 2 {
				t.Errorf("%v took effect, %v were repeats, %v were left to Retry; want 3, 5, 2", p, r, x)
			}
			if name == "maybe to all" && !filter.maybe(Record{MsgID: "never seen"}) {
				t.Error("the filter is not as wrong as this test needs it")
			}
		})
	}
}

// After a start the filter is empty and learns from what is refused.
func TestAFilterLearnsFromARepeat(t *testing.T) {
	f := newFixture(t)
	m := f.owe("m1")[0]
	f.deliver(m)
	f.Filter = NewFilter(100)
	f.deliver(m)
	if !f.Filter.maybe(Record{Consumer: "points", MsgID: m.ID}) {
		t.Error("the filter has learned nothing")
	}
	f.wantOnce(m)
}

// A filter remembers the last messages, by consumer, and its memory has a bound.
func TestAFilterRemembersTheLastMessages(t *testing.T) {
	f := NewFilter(1000)
	bits := f.young.Cap() + f.old.Cap()
	message := func(i int) Record { return Record{Consumer: "points", MsgID: fmt.Sprint("m", i)} }
	for i := range 10500 {
		f.add(message(i))
	}
	for i := 9500; i < 10500; i++ {
		if !f.maybe(message(i)) {
			t.Fatalf("message %d of 10500 is forgotten", i)
		}
	}
	wrong := 0
	for i := range 8000 {
		if f.maybe(message(i)) {
			wrong++
		}
	}
	if wrong > 8000*3/100 { // twice falsePositives, for the two generations, and half as much for chance
		t.Errorf("%d of 8000 old messages are taken for seen", wrong)
	}
	if f.maybe(Record{Consumer: "coupons", MsgID: "m10499"}) && f.maybe(Record{Consumer: "coupons", MsgID: "m10498"}) {
		t.Error("one consumer's messages are taken for another's")
	}
	if now := f.young.Cap() + f.old.Cap(); now != bits {
		t.Errorf("%d bits have become %d", bits, now)
	}
}
