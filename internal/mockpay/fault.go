package mockpay

import (
	"net/http"
	"time"

	"example.com/oncepay/internal/web"
)

// Faults is how the channel misbehaves: the body of PUT /v1/faults, which replaces all of it, and the answer of GET, which
// shows what is left. What a body leaves out is off. DELETE switches everything off.
type Faults struct {
	Charge       CallFault   `json:"charge"`         // POST /v1/trades
	Query        CallFault   `json:"query"`          // GET /v1/trades/{out_trade_no}
	Close        CallFault   `json:"close"`          // POST /v1/trades/{out_trade_no}/close
	Refund       CallFault   `json:"refund"`         // POST /v1/refunds
	RefundQuery  CallFault   `json:"refund_query"`   // GET /v1/refunds/{out_refund_no}
	Notices      NoticeFault `json:"notices"`        // every notice
	Bill         BillFault   `json:"bill"`           // GET /v1/bills/{date} and its .sha256
	RefundMode   string      `json:"refund_mode"`    // "manual": a new refund waits for succeed or fail; "auto": it succeeds by itself
	AutoRefundMS int64       `json:"auto_refund_ms"` // after this, if "auto"
}

// The values of Faults.RefundMode. Config.AutoRefund says which one holds when none is set.
const (
	RefundManual = "manual"
	RefundAuto   = "auto"
)

// CallFault spoils the answers to one kind of call. At most one of DropAfter, Status and StatusAfter is set. A client that
// itself repeats a GET whose connection broke, as net/http does, has used up two of Times.
type CallFault struct {
	DelayMS     int64 `json:"delay_ms"`     // the answer leaves this much later; the effect is not delayed
	DropAfter   bool  `json:"drop_after"`   // the effect happens, then the connection is cut without an answer
	Status      int   `json:"status"`       // this answer instead of an effect: 5xx a failure, 4xx a refusal
	StatusAfter int   `json:"status_after"` // the effect happens, then this 5xx is the answer
	Times       int   `json:"times"`        // for so many calls; 0: until it is cleared
}

// NoticeFault spoils the delivery of notices. The second of a reordered pair is sent without a fault and does not count.
type NoticeFault struct {
	Repeat  int   `json:"repeat"`   // deliver each notice this many times more, acknowledged or not
	DelayMS int64 `json:"delay_ms"` // deliver it this much later
	Reorder bool  `json:"reorder"`  // hold a notice back until the next one, of whatever trade, has been sent
	Lose    bool  `json:"lose"`     // do not deliver it
	Times   int   `json:"times"`    // for so many notices; 0: until it is cleared
}

// BillFault spoils bills. Lines are named by their trade_no or, of a refund, by its out_refund_no. The hash is that of the spoiled
// bill, so that only wrong_sha is found out by it.
type BillFault struct {
	Status   int    `json:"status"`    // this answer instead of a bill: 5xx a failure, 4xx a refusal
	WrongSHA bool   `json:"wrong_sha"` // the hash is another file's
	Repeat   string `json:"repeat"`    // this line stands there twice
	Drop     string `json:"drop"`      // this line is missing
	Alter    string `json:"alter"`     // this line's amount is one more
	Times    int    `json:"times"`     // for so many calls; 0: until it is cleared
}

const (
	// maxDelayMS is ten minutes: longer than any deadline that a test can have to outlast.
	maxDelayMS = 10 * 60 * 1000
	// maxRepeat is far more than a channel's worst day.
	maxRepeat = 1000
	// autoRefundMS is long enough for a person to see PROCESSING on a page, and not longer.
	autoRefundMS = 200
)

func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// defaultFaults is no fault at all.
func (s *Server) defaultFaults() Faults {
	f := Faults{RefundMode: RefundManual, AutoRefundMS: autoRefundMS}
	if s.cfg.AutoRefund {
		f.RefundMode = RefundAuto
	}
	return f
}

// of returns the fault for a kind of call; decisions of the buyer and of the bank have none.
func (f *Faults) of(kind string) *CallFault {
	switch kind {
	case kindCharge:
		return &f.Charge
	case kindQuery:
		return &f.Query
	case kindClose:
		return &f.Close
	case kindRefund:
		return &f.Refund
	case kindRefundQuery:
		return &f.RefundQuery
	default:
		return &CallFault{}
	}
}

// take returns the fault for this call and counts it.
func (f *CallFault) take() CallFault {
	taken := *f
	if f.Times == 1 {
		*f = CallFault{}
	} else if f.Times > 1 {
		f.Times--
	}
	return taken
}

// take returns the fault for this notice and counts it.
func (f *NoticeFault) take() NoticeFault {
	taken := *f
	if f.Times == 1 {
		*f = NoticeFault{}
	} else if f.Times > 1 {
		f.Times--
	}
	return taken
}

// take returns the fault for this bill and counts it.
func (f *BillFault) take() BillFault {
	taken := *f
	if f.Times == 1 {
		*f = BillFault{}
	} else if f.Times > 1 {
		f.Times--
	}
	return taken
}

func (f *Faults) check() error {
	for name, c := range map[string]CallFault{"charge": f.Charge, "query": f.Query, "close": f.Close, "refund": f.Refund, "refund_query": f.RefundQuery} {
		outcomes := 0
		for _, set := range []bool{c.DropAfter, c.Status != 0, c.StatusAfter != 0} {
			if set {
				outcomes++
			}
		}
		switch {
		case outcomes > 1:
			return refuse(http.StatusBadRequest, "fault_invalid", "%s: set only one of drop_after, status and status_after.", name)
		case c.Status != 0 && (c.Status < 400 || c.Status > 599), c.StatusAfter != 0 && (c.StatusAfter < 500 || c.StatusAfter > 599):
			return refuse(http.StatusBadRequest, "fault_invalid", "%s: status is from 400 to 599, status_after from 500 to 599.", name)
		case c.DelayMS < 0 || c.DelayMS > maxDelayMS || c.Times < 0:
			return refuse(http.StatusBadRequest, "fault_invalid", "%s: delay_ms is from 0 to %d, times is not negative.", name, maxDelayMS)
		}
	}
	n := f.Notices
	switch {
	case n.DelayMS < 0 || n.DelayMS > maxDelayMS || n.Times < 0 || n.Repeat < 0 || n.Repeat > maxRepeat:
		return refuse(http.StatusBadRequest, "fault_invalid", "notices: delay_ms is from 0 to %d, repeat from 0 to %d, times is not negative.", maxDelayMS, maxRepeat)
	case f.Bill.Status != 0 && (f.Bill.Status < 400 || f.Bill.Status > 599) || f.Bill.Times < 0:
		return refuse(http.StatusBadRequest, "fault_invalid", "bill: status is from 400 to 599, times is not negative.")
	case f.RefundMode != RefundManual && f.RefundMode != RefundAuto:
		return refuse(http.StatusBadRequest, "fault_invalid", "refund_mode is manual or auto.")
	case f.AutoRefundMS < 0 || f.AutoRefundMS > maxDelayMS:
		return refuse(http.StatusBadRequest, "fault_invalid", "auto_refund_ms is from 0 to %d.", maxDelayMS)
	}
	return nil
}

func (s *Server) getFaults(*http.Request) (web.Answer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return web.JSON(http.StatusOK, s.faults)
}

func (s *Server) putFaults(r *http.Request) (web.Answer, error) {
	f := s.defaultFaults()
	if _, err := web.DecodeJSON(r, &f); err != nil {
		return web.Answer{}, err
	}
	if err := f.check(); err != nil {
		return web.Answer{}, err
	}
	return s.setFaults(f)
}

func (s *Server) deleteFaults(*http.Request) (web.Answer, error) {
	return s.setFaults(s.defaultFaults())
}

// setFaults also lets go a notice that is held back, unless reordering goes on: nothing would come for it to wait for.
func (s *Server) setFaults(f Faults) (web.Answer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = f
	if d := s.heldBack; d != nil && !f.Notices.Reorder {
		s.heldBack = nil
		s.start(d)
	}
	return web.JSON(http.StatusOK, f)
}
