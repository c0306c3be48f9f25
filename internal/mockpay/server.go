package mockpay

import (
	"context"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"

	"example.com/oncepay/internal/web"
)

// Config is what a channel needs. Only Merchants is required.
type Config struct {
	Merchants     map[string][]string // merchant id -> webhook secrets, newest first; several while a secret rotates
	PublicURL     string              // what pay_url begins with, such as http://127.0.0.1:9090; empty: as the request came in
	Journal       string              // file that keeps trades, refunds and effects over a restart; empty: memory only
	AutoRefund    bool                // a refund succeeds by itself, as in dev; otherwise it waits for succeed or fail
	RetrySchedule []time.Duration     // pauses between deliveries of an unacknowledged notice; nil: the contract's
	Now           func() time.Time
	Log           *slog.Logger
	Client        *http.Client // sends the notices
}

// Server is the channel. It is safe for concurrent use.
type Server struct {
	cfg  Config
	http http.Handler
	page *template.Template

	// stopped ends with Close. It is kept here because notices outlive the request that caused them.
	stopped    context.Context
	stop       context.CancelFunc
	background sync.WaitGroup

	mu       sync.Mutex // guards everything below, so that looking and acting are one step
	journal  *journal
	secrets  map[string][]string
	trades   map[string]trade  // by out_trade_no
	refunds  map[string]refund // by out_refund_no
	effects  []Effect
	calls    map[call]int // how often each arrived
	took     map[call]int // how often it took effect
	faults   Faults
	heldBack *delivery // the first notice of a pair that is to be reordered
}

// New makes a channel, and reads the journal if there is one.
func New(cfg Config) (*Server, error) {
	if len(cfg.Merchants) == 0 {
		return nil, errors.New("mockpay: a channel without merchants")
	}
	s := &Server{
		cfg: cfg.withDefaults(), secrets: make(map[string][]string), trades: make(map[string]trade), refunds: make(map[string]refund),
		calls: make(map[call]int), took: make(map[call]int),
	}
	for merchant, secrets := range cfg.Merchants {
		if err := checkSecrets(secrets); err != nil {
			return nil, fmt.Errorf("mockpay: merchant %s: %w", merchant, err)
		}
		s.secrets[merchant] = slices.Clone(secrets)
	}
	var err error
	if s.page, err = parsePage(); err != nil {
		return nil, err
	}
	if s.journal, err = openJournal(cfg.Journal, s.apply); err != nil {
		return nil, err
	}
	s.stopped, s.stop = context.WithCancel(context.Background())
	s.http = s.routes()
	s.faults = s.defaultFaults()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.refunds {
		s.decideLater(f)
	}
	return s, nil
}

func (c Config) withDefaults() Config {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Client == nil {
		c.Client = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	if c.RetrySchedule == nil {
		c.RetrySchedule = []time.Duration{time.Second, 5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute} // contract, section 5
	}
	return c
}

// Close stops the deliveries and waits for them until ctx ends; answers that a fault delays are cut off. Nothing is
// sent afterwards.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	s.stop() // under mu, so that nothing is started in the background once it is waited for
	err := s.journal.close()
	s.mu.Unlock()
	done := make(chan struct{})
	go func() { s.background.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		err = errors.Join(err, fmt.Errorf("mockpay: stop deliveries: %w", ctx.Err()))
	}
	return err
}

// ServeHTTP answers the routes of the package comment. Under a prefix, put http.StripPrefix before it.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.http.ServeHTTP(w, r) }

func (s *Server) routes() http.Handler {
	r := chi.NewRouter()
	r.Use(web.SecurityHeaders)
	r.NotFound(s.handle(func(*http.Request) (web.Answer, error) {
		return web.Answer{}, refuse(http.StatusNotFound, "route_not_found", "There is no such path.")
	}))
	r.MethodNotAllowed(s.handle(func(*http.Request) (web.Answer, error) {
		return web.Answer{}, refuse(http.StatusMethodNotAllowed, "method_not_allowed", "There is no such method here.")
	}))

	r.Post("/v1/trades", s.handle(s.postTrade))
	r.Get("/v1/trades/{out_trade_no}", s.handle(s.getTrade))
	r.Post("/v1/trades/{out_trade_no}/pay", s.handle(s.decideTrade(kindPay)))
	r.Post("/v1/trades/{out_trade_no}/fail", s.handle(s.decideTrade(kindFail)))
	r.Post("/v1/trades/{out_trade_no}/close", s.handle(s.decideTrade(kindClose)))

	r.Post("/v1/refunds", s.handle(s.postRefund))
	r.Get("/v1/refunds/{out_refund_no}", s.handle(s.getRefund))
	r.Post("/v1/refunds/{out_refund_no}/succeed", s.handle(s.decideRefund(kindRefundSucceeded)))
	r.Post("/v1/refunds/{out_refund_no}/fail", s.handle(s.decideRefund(kindRefundFailed)))

	r.Get("/v1/bills/{date}", s.getBill)
	r.Get("/v1/effects", s.handle(s.getEffects))
	r.Get("/v1/faults", s.handle(s.getFaults))
	r.Put("/v1/faults", s.handle(s.putFaults))
	r.Delete("/v1/faults", s.handle(s.deleteFaults))
	r.Put("/v1/secrets", s.handle(s.putSecrets))

	r.Get("/pay/{out_trade_no}", s.getPage)
	r.Post("/pay/{out_trade_no}/pay", s.pressTrade(kindPay))
	r.Post("/pay/{out_trade_no}/fail", s.pressTrade(kindFail))
	r.Post("/pay/{out_trade_no}/refunds/{out_refund_no}/succeed", s.pressRefund(kindRefundSucceeded))
	r.Post("/pay/{out_trade_no}/refunds/{out_refund_no}/fail", s.pressRefund(kindRefundFailed))
	return r
}

// now is cut to microseconds, which is what databases keep: a time equals itself after a round trip.
func (s *Server) now() time.Time { return s.cfg.Now().UTC().Truncate(time.Microsecond) }

// pause waits for d and reports false if the server was closed first.
func (s *Server) pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return s.stopped.Err() == nil
	case <-ctx.Done():
		return false
	case <-s.stopped.Done():
		return false
	}
}
