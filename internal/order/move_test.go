package order

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/testenv"
)

func TestAMoveBringsItsHistoryStockAndMessage(t *testing.T) {
	f := newFixture(t)
	no := f.order("K1")
	f.wantOrder(no, Init, 1)
	f.wantStock(98, 2, 0)
	paidAt := now().Add(time.Second)
	err := f.DB.InTx(t.Context(), func(tx *sql.Tx) error {
		o, outcome, err := f.MarkPaid(t.Context(), tx, no, "t1", paidAt)
		if o.Status != Paid || o.Version != 2 || o.PaidAt == nil || !o.PaidAt.Equal(paidAt) || outcome != Applied {
			t.Errorf("%+v, %v", o, outcome)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	f.wantOrder(no, Paid, 2)
	f.wantStock(98, 0, 2)
	var (
		from, to                   int
		cause, actor, topic, msgID string
	)
	err = f.DB.QueryRowContext(t.Context(), `SELECT h.from_status, h.to_status, h.cause, h.actor, x.topic, x.msg_id FROM t_order_history h
		JOIN t_outbox x ON x.partition_key = h.order_no AND x.version = h.version WHERE h.order_no = ? AND h.version = 2`, no).
		Scan(&from, &to, &cause, &actor, &topic, &msgID)
	if err != nil || from != 0 || to != 1 || cause != "t1" || actor != "system:payment" || topic != "order.paid" || msgID != messageID(no, 2) {
		t.Errorf("%d %d %s %s %s %s, %v", from, to, cause, actor, topic, msgID, err)
	}
	if _, err := ship()(t.Context(), f, no); err != nil {
		t.Fatal(err)
	}
	if o, err := Get(t.Context(), f.DB, no); err != nil || o.PaidAt == nil || !o.PaidAt.Equal(paidAt) {
		t.Errorf("shipping lost the time of payment: %+v, %v", o, err)
	}
	f.wantStock(98, 0, 2)
}

// A step asked for in any state is applied, is "already" when this very cause took effect (B49, B87), and is refused
// otherwise. Above all nothing but the refund's own steps leaves REFUNDING and REFUNDED, though the table has steps from
// there to PAID, SHIPPED and FINISHED for it; and other money is not taken for the same (trap T6).
func TestEachActionInEachState(t *testing.T) {
	const applied, already, refused = "applied", "already", "refused"
	for name, c := range map[string]struct {
		act  action
		want map[Status]string // refused where nothing is said
	}{
		"the same trade": {pay("t1"), map[Status]string{Init: applied, Paid: already, Shipped: already, Finished: already, Refunding: already, Refunded: already}},
		"another trade":  {pay("t2"), map[Status]string{Init: applied}},
		"cancel":         {cancel(), map[Status]string{Init: applied, Cancelled: already}},
		"ship":           {ship(), map[Status]string{Paid: applied, Shipped: already}},
		"finish":         {finish(), map[Status]string{Paid: applied, Shipped: applied, Finished: already}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			for _, from := range Statuses() {
				no := f.order(fmt.Sprint("K", from))
				f.walk(no, from)
				before, err := Get(t.Context(), f.DB, no)
				if err != nil {
					t.Fatal(err)
				}
				want := c.want[from]
				if want == "" {
					want = refused
				}
				outcome, err := c.act(t.Context(), f, no)
				got := applied
				if e, ok := apperr.As(err); ok && e.Code == "order_state_illegal" && e.Kind == apperr.Conflict && e.Layer == apperr.LayerState && e.Extra["order_status"] == from {
					got = refused
				} else if err != nil {
					got = err.Error()
				} else if outcome == Already {
					got = already
				}
				if got != want {
					t.Errorf("in %s: %s, want %s", from, got, want)
				}
				after, err := Get(t.Context(), f.DB, no)
				if err != nil {
					t.Fatal(err)
				}
				if moved := after.Version != before.Version; moved != (want == applied) || !moved && after.Status != from {
					t.Errorf("in %s: went from version %d to %d, is %s", from, before.Version, after.Version, after.Status)
				}
				f.wantOrder(no, after.Status, after.Version)
			}
		})
	}
}

func TestAStepThatTookEffectIsAlreadyWhateverCameSince(t *testing.T) {
	f := newFixture(t)
	no := f.order("K1")
	steps := []action{pay("t1"), ship(), finish()}
	for _, step := range append(steps, refund(Finished, Refunding), refund(Refunding, Finished)) {
		if outcome, err := step(t.Context(), f, no); err != nil || outcome != Applied {
			t.Fatalf("%v, %v", outcome, err)
		}
	}
	f.wantOrder(no, Finished, 6)
	for i, step := range append(steps, refund(Finished, Refunding)) {
		if outcome, err := step(t.Context(), f, no); i < 3 && (err != nil || outcome != Already) || i == 3 && outcome != Applied {
			t.Errorf("step %d again: %v, %v", i, outcome, err)
		}
	}
	for i, step := range steps {
		if outcome, err := step(t.Context(), f, no); err != nil || outcome != Already {
			t.Errorf("step %d again while money is going back: %v, %v", i, outcome, err)
		}
	}
}

func TestAMissingOrAStrangersOrderIsNotFound(t *testing.T) {
	f := newFixture(t)
	if _, err := pay("t1")(t.Context(), f, orderNo); !apperr.Is(err, "order_not_found") {
		t.Errorf("missing: %v", err)
	}
	no := f.order("K1")
	err := f.DB.InTx(t.Context(), func(tx *sql.Tx) error {
		_, err := f.Cancel(t.Context(), tx, no, auth.Caller{UserID: 1002})
		return err
	})
	if e, ok := apperr.As(err); !ok || e.Kind != apperr.NotFound || e.Code != "order_not_found" {
		t.Errorf("a stranger: %v", err)
	}
	f.wantOrder(no, Init, 1)
	err = f.DB.InTx(t.Context(), func(tx *sql.Tx) error {
		_, err := f.Cancel(t.Context(), tx, no, auth.Caller{UserID: 1, Ops: true})
		return err
	})
	if err != nil {
		t.Errorf("an operator: %v", err)
	}
	f.wantOrder(no, Cancelled, 2)
}

// race lets twenty ask at once and counts the outcomes.
func (f *fixture) race(orderNo string, act func(i int) action) (applied, already, refused int64) {
	f.t.Helper()
	var counts [3]atomic.Int64
	testenv.Together(20, func(i int) {
		switch outcome, err := act(i)(f.t.Context(), f, orderNo); {
		case apperr.Is(err, "order_state_illegal"):
			counts[2].Add(1)
		case err != nil:
			f.t.Errorf("%d: %v", i, err)
		default:
			counts[outcome].Add(1)
		}
	})
	return counts[Applied].Load(), counts[Already].Load(), counts[2].Load()
}

func TestTwentyReportsOfOneTradeMoveTheOrderOnce(t *testing.T) {
	f := newFixture(t)
	no := f.order("K1")
	if applied, already, refused := f.race(no, func(int) action { return pay("t1") }); applied != 1 || already != 19 || refused != 0 {
		t.Errorf("%d applied, %d already, %d refused", applied, already, refused)
	}
	f.wantOrder(no, Paid, 2)
	f.wantStock(98, 0, 2)
}

func TestOfTwentyTradesOneIsTakenAndTheOthersAreOtherMoney(t *testing.T) {
	f := newFixture(t)
	no := f.order("K1")
	if applied, already, refused := f.race(no, func(i int) action { return pay(fmt.Sprint("t", i)) }); applied != 1 || already != 0 || refused != 19 {
		t.Errorf("%d applied, %d already, %d refused", applied, already, refused)
	}
	f.wantOrder(no, Paid, 2)
	f.wantStock(98, 0, 2)
}

// B108
func TestTwentyCancelsGiveTheGoodsBackOnce(t *testing.T) {
	f := newFixture(t)
	no := f.order("K1")
	// Who cancels does not matter: an end without money is one fact.
	act := func(i int) action {
		if i%2 == 0 {
			return cancel()
		}
		return apply(Move{From: []Status{Init}, To: Cancelled, Cause: "expired", Actor: "system:expiry"})
	}
	if _, _, refused := f.race(no, act); refused != 0 {
		t.Errorf("%d refused", refused)
	}
	f.wantOrder(no, Cancelled, 2)
	f.wantStock(100, 0, 0)
}

func TestOfMoneyAndCancelOneWins(t *testing.T) {
	f := newFixture(t)
	for round := range 10 {
		no := f.order(fmt.Sprint("K", round))
		applied, _, _ := f.race(no, func(i int) action {
			if i%2 == 0 {
				return apply(Move{From: []Status{Init}, To: Cancelled, Cause: causeCancel, Actor: "user:1001"})
			}
			return pay("t1")
		})
		if applied != 1 {
			t.Errorf("%d moves from INIT", applied)
		}
	}
	paid := int64(f.count("SELECT COUNT(*) FROM t_order WHERE status = ?", Paid))
	f.wantStock(100-2*paid, 0, 2*paid)
}

// B80: what was read is old by the time of the update. The whole function runs again and decides on what is true then.
func TestAMoveInBetweenIsSeen(t *testing.T) {
	for name, c := range map[string]struct {
		between action
		refused bool
	}{"the same trade": {pay("t1"), false}, "a cancel": {cancel(), true}} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			no := f.order("K1")
			slow := *f.Service
			runs := 0
			slow.Now = func() time.Time { // asked between reading and updating
				if runs++; runs == 1 {
					if outcome, err := c.between(t.Context(), f, no); err != nil || outcome != Applied {
						t.Errorf("in between: %v, %v", outcome, err)
					}
				}
				return now()
			}
			outcome, err := pay("t1")(t.Context(), &fixture{Service: &slow, t: t}, no)
			if c.refused != apperr.Is(err, "order_state_illegal") || !c.refused && (err != nil || outcome != Already) || runs != 1 {
				t.Errorf("%v, %v, the update was tried %d times", outcome, err, runs)
			}
			if n := f.count("SELECT COUNT(*) FROM t_order_history WHERE order_no = ?", no); n != 2 {
				t.Errorf("%d rows of history", n)
			}
		})
	}
}

// B29, B49: the update goes by status and version; equal values in another version are somebody else's.
func TestTheUpdateComparesStatusAndVersion(t *testing.T) {
	f := newFixture(t)
	no := f.order("K1")
	o, err := Get(t.Context(), f.DB, no)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Order){
		"version behind": func(o *Order) { o.Version-- },
		"version ahead":  func(o *Order) { o.Version++ },
		"other status":   func(o *Order) { o.Status = Paid },
		"other order":    func(o *Order) { o.OrderNo = orderNo },
	} {
		other := *o
		change(&other)
		err := f.DB.InTx(t.Context(), func(tx *sql.Tx) error {
			moved, err := compareAndMove(t.Context(), tx, other, Cancelled, nil, now())
			if moved {
				t.Errorf("%s: moved", name)
			}
			return err
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	f.wantOrder(no, Init, 1)
}

// What a move owes commits with it or not at all.
func TestAMoveThatCannotPayWhatItOwesIsUndone(t *testing.T) {
	for name, plant := range map[string]string{
		"message": "INSERT INTO t_outbox (msg_id, topic, partition_key, version, payload, create_time) VALUES (CONCAT('m1:o:', ?, ':2'), 't', 'k', 1, '{}', NOW())",
		"stock":   "INSERT INTO t_stock_movement (cause, kind, sku_id, available, reserved, sold, create_time) VALUES (CONCAT('o1:', ?), 'confirm', 1, 0, 0, 0, NOW())",
		"history": "INSERT INTO t_order_history (order_no, version, to_status, cause, actor, create_time) VALUES (?, 2, 1, 'x', 'x', NOW())",
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			no := f.order("K1")
			if _, err := f.DB.ExecContext(t.Context(), plant, no); err != nil {
				t.Fatal(err)
			}
			_, err := pay("t1")(t.Context(), f, no)
			if _, decided := apperr.As(err); err == nil || decided || mysqldb.Unavailable(err) {
				t.Errorf("got %v; it is a fault of ours", err)
			}
			if o, err := Get(t.Context(), f.DB, no); err != nil || o.Status != Init || o.Version != 1 {
				t.Errorf("%+v, %v", o, err)
			}
			f.wantStock(98, 2, 0)
		})
	}
}

func TestAnEndedContextMovesNothing(t *testing.T) {
	f := newFixture(t)
	no := f.order("K1")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := pay("t1")(ctx, f, no); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	f.wantOrder(no, Init, 1)
}
