package order

import (
	"slices"
	"testing"

	"example.com/oncepay/internal/inventory"
)

// table is the state table once more, by hand: a row for the state left, a column for the state entered.
func table() map[Status]string {
	return map[Status]string{
		//          INIT PAID SHIPPED FINISHED CANCELLED REFUNDING REFUNDED
		Init:      ". x . . x . .",
		Paid:      ". . x x . x .",
		Shipped:   ". . . x . x .",
		Finished:  ". . . . . x .",
		Cancelled: ". . . . . . .", // late money is returned, it does not revive the order
		Refunding: ". x x x . . x",
		Refunded:  ". x x x . . .",
	}
}

func TestTheStateTableHasTheseMovesAndNoOther(t *testing.T) {
	for _, from := range Statuses() {
		for i, to := range Statuses() {
			if want := table()[from][2*i] == 'x'; from.CanMoveTo(to) != want {
				t.Errorf("%s to %s: %v, want %v", from, to, !want, want)
			}
		}
	}
	for _, unknown := range []Status{7, 255} {
		if unknown.Next() != nil || Init.CanMoveTo(unknown) {
			t.Errorf("a status %s is part of the table", unknown)
		}
	}
}

// The numbers stand in the database, the names in clients.
func TestNumbersAndNamesNeverChange(t *testing.T) {
	for i, name := range []string{"INIT", "PAID", "SHIPPED", "FINISHED", "CANCELLED", "REFUNDING", "REFUNDED"} {
		s := Status(i)
		text, err := s.MarshalText()
		var back Status
		if err != nil || string(text) != name || s.String() != name || back.UnmarshalText(text) != nil || back != s {
			t.Errorf("%d: %s, %v, back %d", i, text, err, back)
		}
	}
	if len(Statuses()) != 7 || len(table()) != 7 {
		t.Error("there are not seven states")
	}
	for _, text := range []string{"", "paid", "PAID ", "1", "Status(7)"} {
		var s Status
		if s.UnmarshalText([]byte(text)) == nil {
			t.Errorf("%q is read as %s", text, s)
		}
	}
}

func TestAPersonMayBuyAgainAfterAnEndWithoutSale(t *testing.T) {
	for _, s := range Statuses() {
		if want := s == Cancelled || s == Refunded; s.EndedWithoutSale() != want {
			t.Errorf("%s: %v", s, !want)
		}
	}
}

func TestOnlyHeldSoldAndNotSoldMoveGoods(t *testing.T) {
	if kind, ok := stockEffect(nil, Init); !ok || kind != inventory.Reserve {
		t.Errorf("creation: %s, %v", kind, ok)
	}
	for _, from := range Statuses() {
		for _, to := range from.Next() {
			want := map[[2]Status]inventory.Kind{{Init, Paid}: inventory.Confirm, {Init, Cancelled}: inventory.Release}[[2]Status{from, to}]
			if kind, ok := stockEffect(&from, to); kind != want || ok != (want != "") {
				t.Errorf("%s to %s: %q, want %q", from, to, kind, want)
			}
		}
	}
	if kind, ok := stockEffect(nil, Paid); ok {
		t.Errorf("an order made as PAID moves goods: %s", kind)
	}
}

func TestTopicsNeverChange(t *testing.T) {
	from := Init
	got := []string{topic(nil, Init)}
	for _, s := range Statuses()[1:] {
		got = append(got, topic(&from, s))
	}
	want := []string{"order.created", "order.paid", "order.shipped", "order.finished", "order.cancelled", "order.refunding", "order.refunded"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
