package core_test

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// The code of the README is that of the examples, so it runs.
func TestReadme(t *testing.T) {
	source, err := os.ReadFile(os.Getenv("EXAMPLES"))
	must(t, err)
	readme, err := os.ReadFile(os.Getenv("README"))
	must(t, err)
	blocks := bytes.Split(readme, []byte("```go\n"))[1:]
	for _, block := range blocks {
		code, _, _ := strings.Cut(string(block), "```")
		if !strings.Contains(flat(string(source)), flat(code)) {
			t.Errorf("not in the examples:\n%s", code)
		}
	}
	if len(blocks) < 6 {
		t.Fatalf("%d blocks", len(blocks))
	}
}

// flat leaves indentation out.
func flat(code string) string {
	lines := strings.Split(strings.TrimSpace(code), "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(lines, "\n")
}
