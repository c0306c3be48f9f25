package ledger

import (
	"database/sql"
	"errors"
	"testing"
	"time"

	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

var now = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func payment(cause string) Transfer {
	return Transfer{Cause: cause, Kind: Pay, Debit: Channel("mockpay"), Credit: Sales, Amount: 1999, Currency: "CNY", OrderNo: "O1"}
}

func post(t *testing.T, db *mysqldb.DB, list ...Transfer) error {
	t.Helper()
	return db.InTx(t.Context(), func(tx *sql.Tx) error {
		for _, p := range list {
			if err := Post(t.Context(), tx, p, now); err != nil {
				return err
			}
		}
		return nil
	})
}

// balance is the sum of an account's entries; entries is how many there are in all.
func balance(t *testing.T, db *mysqldb.DB, a Account) (sum int64, entries int) {
	t.Helper()
	err := db.QueryRow("SELECT COALESCE(SUM(CASE WHEN account = ? THEN amount ELSE 0 END), 0), COUNT(*) FROM t_ledger_entry", a).Scan(&sum, &entries)
	if err != nil {
		t.Fatal(err)
	}
	return sum, entries
}

func TestAPostingHasTwoSidesThatSumToZero(t *testing.T) {
	db := testenv.OpenDB(t, testenv.Database(t))
	refund := Transfer{Cause: "r1:R1", Kind: Refund, Debit: Sales, Credit: Channel("mockpay"), Amount: 500, Currency: "CNY", OrderNo: "O1"}
	if err := post(t, db, payment("t1:T1"), refund); err != nil {
		t.Fatal(err)
	}
	for account, want := range map[Account]int64{Channel("mockpay"): 1499, Sales: -1499, Suspense: 0} {
		if got, entries := balance(t, db, account); got != want || entries != 4 {
			t.Errorf("%s has %d in %d entries, want %d in 4", account, got, entries, want)
		}
	}
}

// Each cause is posted once for each kind, at once or later; another kind of the same cause is other money.
func TestACauseIsPostedOnceForEachKind(t *testing.T) {
	db := testenv.OpenDB(t, testenv.Database(t))
	failed := make([]error, 10)
	testenv.Together(len(failed), func(i int) { failed[i] = post(t, db, payment("t1:T1")) })
	won := 0
	for _, err := range failed {
		if err == nil {
			won++
		} else if !mysqldb.IsDuplicate(err, "uk_cause_kind_account") {
			t.Errorf("the same cause again: %v; want its unique index", err)
		}
	}
	if sum, entries := balance(t, db, Channel("mockpay")); won != 1 || sum != 1999 || entries != 2 {
		t.Errorf("%d postings won, %d in %d entries; want one of 1999", won, sum, entries)
	}
	undo := payment("t1:T1")
	undo.Kind = RefundUndo
	if err := post(t, db, undo); err != nil {
		t.Errorf("another kind: %v", err)
	}
}

func TestAPostingLeavesWithItsTransaction(t *testing.T) {
	db := testenv.OpenDB(t, testenv.Database(t))
	broken := errors.New("broken")
	err := db.InTx(t.Context(), func(tx *sql.Tx) error {
		if err := Post(t.Context(), tx, payment("t1:T1"), now); err != nil {
			return err
		}
		return broken
	})
	if !errors.Is(err, broken) {
		t.Fatal(err)
	}
	if _, entries := balance(t, db, Sales); entries != 0 {
		t.Errorf("%d entries are left, want none", entries)
	}
}

func TestAPostingThatMovesNothingIsRefused(t *testing.T) {
	db := testenv.OpenDB(t, testenv.Database(t))
	for name, spoil := range map[string]func(*Transfer){
		"zero": func(p *Transfer) { p.Amount = 0 }, "negative": func(p *Transfer) { p.Amount = -1 }, "to itself": func(p *Transfer) { p.Credit = p.Debit },
	} {
		p := payment("t1:" + name)
		spoil(&p)
		if err := post(t, db, p); err == nil {
			t.Errorf("%s: posted", name)
		}
	}
	if _, entries := balance(t, db, Sales); entries != 0 {
		t.Errorf("%d entries, want none", entries)
	}
}
