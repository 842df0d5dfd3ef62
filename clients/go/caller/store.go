package caller

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

// Store keeps a key for each intent.
type Store interface {
	// Key returns the key of an intent, and makes and keeps one where there is none.
	// All callers of one intent get one key.
	Key(ctx context.Context, intent string) (string, error)
	// Forget drops the key of an intent, if there is one.
	Forget(ctx context.Context, intent string) error
}

// MemoryStore keeps keys as long as the process runs. The zero value is empty.
type MemoryStore struct {
	mutex sync.Mutex
	keys  map[string]string
}

func (s *MemoryStore) Key(_ context.Context, intent string) (string, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if key, known := s.keys[intent]; known {
		return key, nil
	}
	key := rand.Text()
	if s.keys == nil {
		s.keys = map[string]string{}
	}
	s.keys[intent] = key
	return key, nil
}

func (s *MemoryStore) Forget(_ context.Context, intent string) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	delete(s.keys, intent)
	return nil
}

// FileStore keeps each key in a file of the directory Dir, which must exist. A key
// is on the disk before a request is sent with it. Several processes may share the
// directory.
type FileStore struct{ Dir string }

func (s FileStore) Key(_ context.Context, intent string) (string, error) {
	path := s.path(intent)
	key, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		key, err = s.add(path)
	}
	if err != nil {
		return "", err
	}
	return string(key), s.sync() // who made the file may have died before its name was durable
}

// add makes the file of a key. The first of several that link it wins: the others read its key.
func (s FileStore) add(path string) ([]byte, error) {
	key := rand.Text()
	temporary, err := s.write(key)
	if err != nil {
		return nil, err
	}
	defer os.Remove(temporary)
	err = os.Link(temporary, path)
	if errors.Is(err, fs.ErrExist) {
		return os.ReadFile(path)
	}
	return []byte(key), err
}

// write makes a file that is whole before it has its name.
func (s FileStore) write(key string) (name string, err error) {
	file, err := os.CreateTemp(s.Dir, ".new-*")
	if err != nil {
		return "", err
	}
	_, err = file.WriteString(key)
	if err == nil {
		err = file.Sync()
	}
	if closing := file.Close(); err == nil {
		err = closing
	}
	if err != nil {
		_ = os.Remove(file.Name())
	}
	return file.Name(), err
}

// sync makes the name durable.
func (s FileStore) sync() error {
	directory, err := os.Open(s.Dir)
	if err != nil {
		return err
	}
	defer directory.Close()
	return directory.Sync()
}

func (s FileStore) Forget(_ context.Context, intent string) error {
	if err := os.Remove(s.path(intent)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return s.sync()
}

func (s FileStore) path(intent string) string {
	return filepath.Join(s.Dir, fmt.Sprintf("%x", sha256.Sum256([]byte(intent))))
}
