package mockpay

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/go-json-experiment/json"

	"example.com/oncepay/internal/web"
)

// journal keeps one record a line. It survives the process, not the machine: a fake channel's word need not be synced to
// the disk. A nil journal keeps nothing.
type journal struct {
	file *os.File
	size int64 // of the whole lines; what lies behind them is a part of one, and is written over
}

// openJournal gives every record that is there to apply. A last line that a dying process did not finish is passed over: its
// effect was never answered for.
func openJournal(path string, apply func(record)) (*journal, error) {
	if path == "" {
		return nil, nil
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("mockpay: open journal: %w", err)
	}
	j := &journal{file: file}
	if err := j.replay(apply); err != nil {
		return nil, errors.Join(fmt.Errorf("mockpay: read journal %s: %w", path, err), file.Close())
	}
	return j, nil
}

func (j *journal) replay(apply func(record)) error {
	data, err := io.ReadAll(j.file)
	if err != nil {
		return err
	}
	for {
		line, rest, whole := bytes.Cut(data, []byte{'\n'})
		if !whole {
			return nil
		}
		var rec record
		if err := web.UnmarshalStrict(line, &rec); err != nil {
			return fmt.Errorf("the record at byte %d is damaged; remove the file to begin anew: %w", j.size, err)
		}
		apply(rec)
		j.size += int64(len(line)) + 1
		data = rest
	}
}

// append writes a record. After an error the journal is as it was before.
func (j *journal) append(rec record) error {
	if j == nil {
		return nil
	}
	line, err := json.Marshal(rec)
	if err != nil {
		return fmt.Errorf("encode journal record: %w", err)
	}
	n, err := j.file.WriteAt(append(line, '\n'), j.size)
	if err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	j.size += int64(n)
	return nil
}

func (j *journal) close() error {
	if j == nil {
		return nil
	}
	if err := j.file.Close(); err != nil {
		return fmt.Errorf("mockpay: close journal: %w", err)
	}
	return nil
}
