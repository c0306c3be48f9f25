// Package testenv gives tests real servers and the faults of a real network: a TCP
// proxy that cuts, holds, delays or swallows single commands and replies, and gates
// that stop a party at a chosen point. Only _test files import it.
package testenv

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	// maxText bounds how much of a command rules and log see, in bytes: more than
	// the service's statements and keys need, little beside a bulk insert.
	maxText = 2 << 10

	// maxEvents bounds the log: with maxText, 64 MB at the very worst. The largest
	// load test sends about 20 000 commands between two looks at the log.
	maxEvents = 1 << 15
)

// Proxy stands between the program under test and MySQL or Redis, on a port of its
// own. It follows the protocol, so that faults can be aimed at one command:
//
//	proxy.On(testenv.Prefix("COMMIT"), 1, testenv.SwallowReply())
//
// Without a rule it passes everything on unchanged. While the server itself is
// down, a client is accepted and cut at once; Down refuses it. What the proxy does
// not understand (TLS, compression, publish/subscribe) fails the test. All methods
// may be called concurrently; everything ends with the test.
type Proxy struct {
	t        testing.TB
	network  string
	upstream string
	addr     string
	newWire  func() wire
	running  sync.WaitGroup // accept loops and connections
	black    atomic.Bool

	mu       sync.Mutex
	listener net.Listener // nil while down
	conns    map[*conn]struct{}
	lastConn int
	rules    []*Rule
	events   []*Event
	lost     int // events beyond maxEvents
}

// NewMySQLProxy starts a proxy for the MySQL server at upstream, an address of
// network "tcp" or "unix".
func NewMySQLProxy(t testing.TB, network, upstream string) *Proxy {
	t.Helper()
	return newProxy(t, network, upstream, func() wire { return new(mysqlWire) })
}

// NewRedisProxy starts a proxy for the Redis server at upstream, an address of
// network "tcp" or "unix".
func NewRedisProxy(t testing.TB, network, upstream string) *Proxy {
	t.Helper()
	return newProxy(t, network, upstream, func() wire { return new(redisWire) })
}

func newProxy(t testing.TB, network, upstream string, newWire func() wire) *Proxy {
	t.Helper()
	p := &Proxy{
		t:        t,
		network:  network,
		upstream: upstream,
		addr:     "127.0.0.1:0",
		newWire:  newWire,
		conns:    make(map[*conn]struct{}),
	}
	p.Up()
	t.Cleanup(func() {
		p.Down()
		p.running.Wait()
	})
	return p
}

// Addr is the host:port to give to the program under test. It never changes.
func (p *Proxy) Addr() string { return p.addr }

// On makes a do its work on the commands that m matches, the first times of them
// or, if times is negative, all. Of several rules for a command the one set up
// first applies, until it is used up. A command is the SQL text (or COM_PING and
// the like), or a Redis command in one line with its name in capitals:
// "SET key value px 3000 nx". Rules see its first 2048 bytes.
func (p *Proxy) On(m Match, times int, a Action) *Rule {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &Rule{proxy: p, match: m, action: a, left: times}
	p.rules = append(p.rules, r)
	return r
}

// Down cuts all connections and refuses new ones. When it returns, nothing more is
// forwarded.
func (p *Proxy) Down() {
	p.mu.Lock()
	if p.listener != nil {
		p.listener.Close()
		p.listener = nil
	}
	p.mu.Unlock()
	p.cutAll()
}

// Up accepts connections again, on the same port as before.
func (p *Proxy) Up() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		return
	}
	listener, err := net.Listen("tcp", p.addr)
	if err != nil {
		p.t.Fatalf("fault proxy: %v", err)
	}
	p.listener = listener
	p.addr = listener.Addr().String()
	p.running.Go(func() { p.accept(listener) })
}

// Blackhole(true) makes the proxy accept connections and read commands, but
// neither forward nor answer anything: the server seems to hang. Blackhole(false)
// cuts the existing connections, which have lost bytes, and serves new ones.
func (p *Proxy) Blackhole(on bool) {
	if p.black.Swap(on) && !on {
		p.cutAll()
	}
}

func (p *Proxy) cutAll() {
	p.mu.Lock()
	conns := slices.Collect(maps.Keys(p.conns))
	p.mu.Unlock()
	for _, c := range conns {
		c.cut()
	}
	for _, c := range conns {
		<-c.done
	}
}

func (p *Proxy) accept(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			p.t.Errorf("fault proxy: %v", err)
			return
		}
		p.start(listener, client)
	}
}

func (p *Proxy) start(listener net.Listener, client net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != listener { // Down came between Accept and here
		client.Close()
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.lastConn++
	c := &conn{proxy: p, id: p.lastConn, wire: p.newWire(), cut: cancel, done: make(chan struct{})}
	p.conns[c] = struct{}{}
	p.running.Go(func() {
		c.serve(ctx, client)
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, c)
	})
}

// Event is one command that came through the proxy. The times are those of one
// process, so events of two proxies can be compared.
type Event struct {
	Conn      int    // number of the connection, from 1
	Cmd       string // as rules see it
	Arrived   time.Time
	Forwarded time.Time // zero if the command never reached the server
	// Replied is taken directly before the reply goes to the client: whatever the
	// client does because of the reply is later. Zero if it got none.
	Replied time.Time
}

// Log returns the commands so far, in order of arrival. It fails the test if the
// log had no room for all of them: such a log proves nothing.
func (p *Proxy) Log() []Event {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost > 0 {
		p.t.Errorf("fault proxy: log is short of %d commands; call ClearLog before the part that counts", p.lost)
	}
	events := make([]Event, len(p.events))
	for i, e := range p.events {
		events[i] = *e
	}
	return events
}

// ClearLog empties the log.
func (p *Proxy) ClearLog() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events, p.lost = nil, 0
}

// arrived logs a command and finds its rule.
func (p *Proxy) arrived(connID int, cmd string) (*Event, Action) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := &Event{Conn: connID, Cmd: cmd, Arrived: time.Now()}
	if len(p.events) < maxEvents {
		p.events = append(p.events, e)
	} else {
		p.lost++
	}
	for _, r := range p.rules {
		if r.take(cmd) {
			return e, r.action
		}
	}
	return e, Action{}
}

// stamp sets a field of an event that may be in the log already.
func (p *Proxy) stamp(field *time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*field = time.Now()
}
