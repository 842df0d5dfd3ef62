package jsontext

import (
	"encoding/json"
	"math/big"
	"testing"
)

func TestMarshalKeepsWhatWasWritten(t *testing.T) {
	for value, want := range map[any]string{"<a> & b": `"<a> & b"`, "\u2028\n": `"\u2028\n"`, 7: "7"} {
		if text, err := Marshal(value); err != nil || string(text) != want {
			t.Errorf("%q: %s %v", value, text, err)
		}
	}
	if _, err := Marshal(func() {}); err == nil {
		t.Error("a function became JSON")
	}
}

type (
	hidden   struct{ amount int }
	promoted struct {
		Amount int `json:",omitempty"`
	}
	ofItsOwn  struct{ amount int }
	atPointer struct{ amount int }
)

func (*atPointer) MarshalJSON() ([]byte, error) { return []byte("{}"), nil }

func (ofItsOwn) MarshalJSON() ([]byte, error) { return []byte("{}"), nil }

func TestKeeps(t *testing.T) {
	type named struct {
		Name string
		In   any
	}
	bad := "\xff"
	for _, c := range []struct {
		value any
		want  bool
	}{
		{bad, false}, {&bad, false}, {[]any{1, bad}, false}, {[1]string{bad}, false}, {map[string]int{bad: 1}, false},
		{map[int]any{1: bad}, false}, {named{Name: bad}, false}, {&named{In: named{Name: bad}}, false},
		{"\ufffd", true}, {named{Name: "good", In: (*named)(nil)}, true}, {[]byte(bad), true}, {nil, true},
		{map[string]any{"sent": json.RawMessage(`"\ufffd"`)}, true},
		{hidden{1}, false}, {&hidden{1}, false}, {struct{ hidden }{}, false}, {struct{}{}, true}, {map[string]int{}, true},
		{(*hidden)(nil), true}, {struct{ promoted }{}, true}, {struct{ *promoted }{}, true}, {ofItsOwn{1}, true}, {&ofItsOwn{1}, true},
		{*big.NewInt(1), false}, {&atPointer{1}, true},
	} {
		text, err := Marshal(c.value)
		if err != nil {
			t.Fatal(err)
		}
		if Keeps(c.value, text) != c.want {
			t.Errorf("%#v as %s: %v", c.value, text, !c.want)
		}
	}
}
