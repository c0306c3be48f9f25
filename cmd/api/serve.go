package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"example.com/oncepay/internal/activity"
	"example.com/oncepay/internal/audit"
	"example.com/oncepay/internal/bill"
	"example.com/oncepay/internal/broker"
	"example.com/oncepay/internal/callback"
	"example.com/oncepay/internal/config"
	"example.com/oncepay/internal/dedup"
	"example.com/oncepay/internal/exception"
	"example.com/oncepay/internal/grant"
	"example.com/oncepay/internal/idemkey"
	"example.com/oncepay/internal/inventory"
	"example.com/oncepay/internal/jobs"
	"example.com/oncepay/internal/lock"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/mockpay"
	"example.com/oncepay/internal/order"
	"example.com/oncepay/internal/outbox"
	"example.com/oncepay/internal/payment"
	"example.com/oncepay/internal/recon"
	"example.com/oncepay/internal/timeline"
	"example.com/oncepay/internal/token"
	"example.com/oncepay/internal/web"
)

const (
	// drainTimeout is how long requests in flight may go on after a stop signal: longer than any request's own deadline,
	// shorter than the 30 s after which orchestrators kill.
	drainTimeout = 20 * time.Second
	// readHeaderTimeout and idleTimeout keep slow or silent clients from holding connections.
	readHeaderTimeout = 5 * time.Second
	idleTimeout       = time.Minute
	// writeSlack on top of the request's deadline leaves time for a COMMIT that no context can interrupt.
	writeSlack = 10 * time.Second
	// maxHeaderBytes: our headers are a token, a key and an id.
	maxHeaderBytes = 32 << 10
)

// service is everything that answers requests, wired once.
type service struct {
	cfg        *config.Config
	stores     *stores
	metrics    *metrics.Metrics
	log        *slog.Logger
	now        func() time.Time
	keys       *idemkey.Store
	tokens     *token.Store
	orders     *order.Service
	stock      *inventory.Service
	activity   *activity.Store
	recon      *recon.Checker
	exceptions *exception.Store
	payments   *payment.Service
	callbacks  *callback.Service
	timeline   *timeline.Teller
	broker     *broker.Broker
	relay      *outbox.Relay
	messages   *dedup.Service
	grants     *grant.Service
	bills      *bill.Service
	audit      *audit.Log
	jobs       *jobs.Runner
	mockpay    *mockpay.Server // in-process, dev only; else nil
	draining   atomic.Bool
}

// newService connects the parts. Nothing is set anywhere else. self is this process's own address, e.g.
// http://127.0.0.1:8080: channels call back there unless PUBLIC_URL says otherwise.
func newService(cfg *config.Config, s *stores, m *metrics.Metrics, w world, log *slog.Logger, self string) (*service, error) {
	keys := &idemkey.Store{
		DB: s.db, Now: w.now, Lease: cfg.KeyLease, Retention: cfg.KeyRetention, Metrics: m,
		Disabled: cfg.Disabled(config.GuardIdempotencyKey),
	}
	tokens := &token.Store{
		Client: s.redis, TTL: cfg.TokenTTL, ClaimLease: claimLease(cfg), Wait: cfg.LockWait, Metrics: m, Log: log, Now: w.now,
		Disabled: cfg.Disabled(config.GuardToken),
	}
	var locks order.Locker = &lock.Redis{Client: s.redis, TTL: cfg.LockTTL, Wait: cfg.LockWait, Metrics: m, Log: log}
	if cfg.Disabled(config.GuardLock) {
		locks = lock.None{}
	}
	exceptions := &exception.Store{DB: s.db, Metrics: m, Now: w.now}
	orders := &order.Service{
		DB: s.db, Keys: keys, Tokens: tokens, Locks: locks, Exceptions: exceptions, Metrics: m, Now: w.now, NewOrderNo: w.newOrderNo,
		PayTimeout: cfg.OrderPayTimeout, TokenRequired: cfg.TokenRequired,
	}
	svc := &service{
		cfg: cfg, stores: s, metrics: m, log: log, now: w.now, keys: keys, tokens: tokens, orders: orders, exceptions: exceptions,
		stock:    &inventory.Service{DB: s.db, Now: w.now},
		audit:    &audit.Log{DB: s.db},
		grants:   &grant.Service{DB: s.db, Keys: keys, Metrics: m, Now: w.now, NewCouponNo: w.newOrderNo, NewCode: grant.NewCode},
		activity: &activity.Store{DB: s.db, Now: w.now},
		recon:    &recon.Checker{DB: s.db, Redis: s.redis, Now: w.now},
		timeline: &timeline.Teller{DB: s.db, Orders: orders},
		jobs:     jobs.NewRunner(log, m),
	}
	channels, err := svc.channels(self)
	if err != nil {
		return nil, err
	}
	svc.payments = &payment.Service{
		DB: s.db, Keys: keys, Locks: locks, Orders: orders, Exceptions: exceptions, Channels: channels, Metrics: m, Log: log, Now: w.now,
		NewPayNo: w.newOrderNo, PublicURL: cmp.Or(cfg.PublicURL, self), CallBudget: min(callBudget, cfg.RequestTimeout/3), Wake: svc.jobs.Wake,
	}
	svc.callbacks = &callback.Service{DB: s.db, Payments: svc.payments, Exceptions: exceptions, Now: w.now}
	svc.bills = &bill.Service{DB: s.db, Payments: svc.payments, Exceptions: exceptions, Now: w.now, Metrics: m}
	if err := svc.openMessages(); err != nil {
		return nil, err
	}
	svc.schedule()
	return svc, nil
}

// schedule lists the jobs. They run on every instance; each piece of work is claimed by one.
func (s *service) schedule() {
	add := func(name string, every time.Duration, round func(context.Context) error) {
		s.jobs.Jobs = append(s.jobs.Jobs, jobs.Job{Name: name, Every: every, Round: func(ctx context.Context) error {
			return round(web.WithRequestID(ctx, "job:"+name, s.log)) // its rows and log lines say where they come from
		}})
	}
	add("payments.poll", jobPause, s.payments.PollPayments)
	add("refunds.send", jobPause, s.payments.SendRefunds)
	add("orders.close", jobPause, s.payments.CloseExpired)
	add("notices.retry", jobPause, s.callbacks.RetryParked)
	add("outbox.relay", relayPause, s.relay.Round)
	add("messages.retry", jobPause, s.messages.Retry)
	add("messages.rescue", jobPause, s.messages.Rescue)
	if s.mockpay == nil { // the one in this process forgets at its end: its bill of yesterday would lack what was paid before
		add("bills.reconcile", housekeepingPause, s.bills.Run)
	}
	add("keys.reap", jobPause, s.keys.Reap)
	add("outbox.clean", housekeepingPause, s.relay.Clean)
	add("messages.clean", housekeepingPause, s.messages.Clean)
}

const (
	// callBudget is one call to a channel: channels ask for 5 s at most, and three calls must fit into a request's deadline.
	callBudget = 3 * time.Second
	// jobPause is between two rounds of a job. A round that finds nothing is one look at an index.
	jobPause = time.Second
	// relayPause is how long a message waits at most for the next round: below what a person notices, and five looks at an index
	// a second cost nothing.
	relayPause = 200 * time.Millisecond
	// housekeepingPause is for work that nobody waits for.
	housekeepingPause = time.Minute
)

// ownURL is where this process can be reached from this machine: an address that stands for all interfaces cannot be opened.
func ownURL(addr net.Addr) string {
	if tcp, ok := addr.(*net.TCPAddr); ok && tcp.IP.IsUnspecified() {
		return fmt.Sprintf("http://127.0.0.1:%d", tcp.Port)
	}
	return "http://" + addr.String()
}

// claimLease outlives the request that holds a token's claim, COMMIT included, so that no living request loses it.
func claimLease(cfg *config.Config) time.Duration { return cfg.RequestTimeout + writeSlack }

// serve runs the service until ctx ends, then lets requests in flight finish.
func serve(ctx context.Context, cfg *config.Config, w world, log *slog.Logger, stdout io.Writer) (err error) {
	m := metrics.New()
	s, err := openStores(ctx, cfg, m, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	listener, err := net.Listen("tcp", cfg.HTTPAddr)
	if err != nil {
		return fmt.Errorf("listen on HTTP_ADDR: %w", err)
	}
	defer listener.Close() // a no-op once the server has taken it over and closed it
	svc, err := newService(cfg, s, m, w, log, ownURL(listener.Addr()))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, svc.closeMockpay(ctx), svc.broker.Close()) }()
	for _, guard := range cfg.DisableGuards {
		log.Warn("GUARD DISABLED for training; only the layers below it are left", "guard", guard)
	}
	if cfg.EmbeddedMySQL() {
		if err := svc.seed(ctx); err != nil {
			return err
		}
	}
	handler, err := svc.routes()
	if err != nil {
		return err
	}
	if err := svc.messages.Register(ctx); err != nil {
		return err
	}
	if err := svc.welcome(stdout, ownURL(listener.Addr())); err != nil {
		return err
	}
	working, stop := context.WithCancel(ctx)
	var background sync.WaitGroup
	background.Go(func() { svc.work(working) })
	defer background.Wait()
	defer stop()
	return svc.listen(ctx, listener, handler)
}

func (s *service) listen(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: readHeaderTimeout, ReadTimeout: s.cfg.RequestTimeout,
		WriteTimeout: s.cfg.RequestTimeout + writeSlack, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	s.draining.Store(true)
	s.log.Info("stopping: no new requests; those in flight may finish", "within", drainTimeout)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		return errors.Join(fmt.Errorf("drain: %w", err), server.Close())
	}
	return nil
}
