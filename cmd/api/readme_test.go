package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"log/slog"

	"example.com/oncepay/internal/config"
)

// updateReadme makes the test write what the sessions print now into README.md.
var updateReadme = flag.Bool("update-readme", false, "write the sessions' real output into README.md")

const readmeFile = "../../README.md"

// A stranger pastes what the program prints at its start, then the README's sessions, and sees what the README shows: this test
// is the stranger. Numbers, times and addresses differ each time and are not compared. After a change that is meant:
// go test ./cmd/api -run Readme -update-readme
func TestReadmeSessionsPrintWhatTheReadmeShows(t *testing.T) {
	shell := newShell(t, startEmbedded(t))
	source, err := os.ReadFile(readmeFile)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	lines := strings.Split(string(source), "\n")
	for i := 0; i < len(lines); i++ {
		out = append(out, lines[i])
		if lines[i] != "```console" {
			continue
		}
		for i++; i < len(lines) && lines[i] != "```"; {
			command := lines[i]
			if !strings.HasPrefix(command, "$ ") {
				t.Fatalf("README line %d: a session's line is a command or what it prints: %q", i+1, command)
			}
			var want []string
			for i++; i < len(lines) && lines[i] != "```" && !strings.HasPrefix(lines[i], "$ "); i++ {
				want = append(want, lines[i])
			}
			got := shell.run(strings.TrimPrefix(command, "$ "))
			if a, b := normal(got), normal(want); a != b && !*updateReadme {
				t.Errorf("%s\nprinted:\n%s\nthe README shows:\n%s", command, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			out = append(append(out, command), got...)
		}
		out = append(out, "```")
	}
	if *updateReadme {
		if err := os.WriteFile(readmeFile, []byte(strings.Join(out, "\n")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// normal replaces what differs from run to run.
func normal(lines []string) string {
	s := strings.Join(lines, "\n")
	for _, r := range []struct{ pattern, with string }{
		{`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`, "<uuid>"},
		{`[0-9a-f]{32}`, "<number>"},
		{`\b[TR][A-Z2-7]{26}\b`, "<channel's number>"},
		{`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`, "<time>"},
		{`127\.0\.0\.1:\d+`, "<address>"},
	} {
		s = regexp.MustCompile(r.pattern).ReplaceAllString(s, r.with)
	}
	return s
}

// startEmbedded runs the program as `make run` does, on a free port with new data, and returns what it printed for the person
// who started it.
func startEmbedded(t *testing.T) (welcome string) {
	t.Helper()
	dir := t.TempDir()
	cfg, err := config.Load(func(name string) string {
		return map[string]string{"DATA_DIR": dir, "HTTP_ADDR": "127.0.0.1:0"}[name]
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	read, write := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, cfg, realWorld(), slog.New(slog.DiscardHandler), write) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the service ended with: %v", err)
		}
	})
	printed := make(chan string, 1)
	go func() {
		var text strings.Builder
		scanner := bufio.NewScanner(read)
		for scanner.Scan() {
			fmt.Fprintln(&text, scanner.Text())
			if strings.Contains(scanner.Text(), "Ctrl-C") {
				break
			}
		}
		printed <- text.String()
		io.Copy(io.Discard, read)
	}()
	select {
	case welcome = <-printed:
	case err := <-ended:
		ended <- err
		t.Fatalf("the service did not start: %v", err)
	case <-time.After(2 * time.Minute):
		t.Fatal("the service did not start in two minutes")
	}
	return welcome
}

// shell is a bash that has pasted the welcome's definitions.
type shell struct {
	t   *testing.T
	in  io.Writer
	out *bufio.Scanner
}

func newShell(t *testing.T, welcome string) *shell {
	t.Helper()
	cmd := exec.Command("bash")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	s := &shell{t: t, in: in, out: bufio.NewScanner(out)}
	for line := range strings.SplitSeq(welcome, "\n") {
		if code := strings.TrimPrefix(line, "  "); regexp.MustCompile(`^(export |post\(\)|get\(\)|field\(\))`).MatchString(code) {
			if printed := s.run(code); len(printed) > 0 {
				t.Fatalf("%s\nprinted %q", code, printed)
			}
		}
	}
	return s
}

// run sends one line and returns what it printed.
func (s *shell) run(line string) []string {
	s.t.Helper()
	const end = "--- end of output ---"
	if _, err := fmt.Fprintf(s.in, "%s\necho; echo '%s'\n", line, end); err != nil {
		s.t.Fatal(err)
	}
	var printed []string
	for s.out.Scan() {
		if s.out.Text() == end {
			for len(printed) > 0 && printed[len(printed)-1] == "" {
				printed = printed[:len(printed)-1]
			}
			return printed
		}
		printed = append(printed, s.out.Text())
	}
	s.t.Fatalf("%s\nended the shell; it printed %q", line, printed)
	return nil
}
