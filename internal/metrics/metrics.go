// Package metrics holds every metric of the service by name, in one place. docs/metrics.md is tested against it.
package metrics

import (
	"cmp"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"
)

// What a guard did with a request. Outcomes are the second half of every guard's story: how often it was asked, and how
// often it stopped something.
const (
	Passed   = "passed"   // the guard let the request through
	Blocked  = "blocked"  // the guard refused it
	Replayed = "replayed" // the guard gave the first result again
	Waited   = "waited"   // the guard made it wait for a twin, then let it go on
	Degraded = "degraded" // the guard could not work (Redis down) and was skipped
	Lost     = "lost"     // the guard's hold ended before the work did
)

// Metrics is the set of one process.
type Metrics struct {
	Registry *prometheus.Registry

	guardHits   *prometheus.CounterVec
	lockWait    prometheus.Histogram
	txRetries   *prometheus.CounterVec
	httpLatency *prometheus.HistogramVec
	exceptions  *prometheus.CounterVec
	channelDown *prometheus.GaugeVec
	jobFailures *prometheus.CounterVec
	refused     *prometheus.CounterVec
	outboxAge   prometheus.Gauge
}

// New registers everything once.
func New() *Metrics {
	m := &Metrics{
		Registry: prometheus.NewRegistry(),
		guardHits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "guard_hits_total",
			Help: "What each guard against repeats did, by guard, operation and outcome.",
		}, []string{"guard", "operation", "outcome"}),
		lockWait: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "lock_wait_seconds",
			Help: "How long requests queued for a business key's lock, whether they got it or not.",
			// From one Redis round trip on loopback to past LOCK_WAIT's default.
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2, 4},
		}),
		txRetries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tx_retries_total",
			Help: "Transactions run again from their start, by cause.",
		}, []string{"cause"}),
		httpLatency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "http_request_duration_seconds",
			Help: "Duration of HTTP requests by method, route pattern and status.",
			// From a replay's one round trip to the request deadline.
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"method", "route", "status"}),
		exceptions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "exceptions_opened_total",
			Help: "Exceptions opened for a person, by kind. Every one is an alarm.",
		}, []string{"kind"}),
		channelDown: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "channel_down",
			Help: "1 while a payment channel's circuit breaker is open and calls fail at once; calls is moves (of money) or looks.",
		}, []string{"channel", "calls"}),
		jobFailures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "job_failures_total",
			Help: "Rounds of background jobs that ended with an error or a panic, by job.",
		}, []string{"job"}),
		outboxAge: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "outbox_oldest_unsent_seconds",
			Help: "Age of the oldest message that no relay has sent; 0 when all are sent. A rise is a broker that is down.",
		}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "notices_refused_total",
			Help: "Channels' notices that were not taken in, by channel and reason. A rise of signature_stale is a clock that is off.",
		}, []string{"channel", "reason"}),
	}
	m.Registry.MustRegister(m.guardHits, m.lockWait, m.txRetries, m.httpLatency, m.exceptions, m.channelDown, m.jobFailures, m.refused, m.outboxAge,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// GuardHit counts one decision of one guard.
func (m *Metrics) GuardHit(guard, operation, outcome string) {
	m.guardHits.WithLabelValues(guard, operation, outcome).Inc()
}

// GuardHits gives the counter behind GuardHit, for those who show or test it.
func (m *Metrics) GuardHits(guard, operation, outcome string) prometheus.Counter {
	return m.guardHits.WithLabelValues(guard, operation, outcome)
}

// GuardCount is how often a guard came to an outcome in this process.
type GuardCount struct {
	Guard, Operation, Outcome string
	Count                     int64
}

// GuardCounts lists what the guards did so far, in the order of their names.
func (m *Metrics) GuardCounts() []GuardCount {
	found := make(chan prometheus.Metric)
	go func() { m.guardHits.Collect(found); close(found) }()
	var counts []GuardCount
	for c := range found {
		var d dto.Metric
		if c.Write(&d) != nil {
			continue // a counter cannot fail to show itself
		}
		labels := make(map[string]string, 3)
		for _, l := range d.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		counts = append(counts, GuardCount{labels["guard"], labels["operation"], labels["outcome"], int64(d.GetCounter().GetValue())})
	}
	slices.SortFunc(counts, func(a, b GuardCount) int {
		return cmp.Or(cmp.Compare(a.Guard, b.Guard), cmp.Compare(a.Operation, b.Operation), cmp.Compare(a.Outcome, b.Outcome))
	})
	return counts
}

// LockWaited records how long a request queued for a lock.
func (m *Metrics) LockWaited(d time.Duration) { m.lockWait.Observe(d.Seconds()) }

// TxRetried counts one more run of a transaction.
func (m *Metrics) TxRetried(cause string) { m.txRetries.WithLabelValues(cause).Inc() }

// ExceptionOpened counts one more thing that needs a person.
func (m *Metrics) ExceptionOpened(kind string) { m.exceptions.WithLabelValues(kind).Inc() }

// Exceptions gives the counter behind ExceptionOpened.
func (m *Metrics) Exceptions(kind string) prometheus.Counter {
	return m.exceptions.WithLabelValues(kind)
}

// ChannelDown says whether a channel's calls of a kind (moves or looks) are taken to be down.
func (m *Metrics) ChannelDown(channel, calls string, down bool) {
	value := 0.0
	if down {
		value = 1
	}
	m.channelDown.WithLabelValues(channel, calls).Set(value)
}

// OutboxAge says how old the oldest unsent message is.
func (m *Metrics) OutboxAge(age time.Duration) { m.outboxAge.Set(age.Seconds()) }

// JobFailed counts a round of a job that failed.
func (m *Metrics) JobFailed(job string) { m.jobFailures.WithLabelValues(job).Inc() }

// NoticeRefused counts a notice that was not taken in. channel is one of ours and reason an error's code, so that the label
// set stays small.
func (m *Metrics) NoticeRefused(channel, reason string) {
	m.refused.WithLabelValues(channel, reason).Inc()
}

// NoticesRefused gives the counter behind NoticeRefused.
func (m *Metrics) NoticesRefused(channel, reason string) prometheus.Counter {
	return m.refused.WithLabelValues(channel, reason)
}

// JobFailures gives the counter behind JobFailed.
func (m *Metrics) JobFailures(job string) prometheus.Counter {
	return m.jobFailures.WithLabelValues(job)
}

// HTTPServed records a finished request. route is the pattern, never the path, so that the label set stays small.
func (m *Metrics) HTTPServed(method, route, status string, d time.Duration) {
	m.httpLatency.WithLabelValues(method, route, status).Observe(d.Seconds())
}
