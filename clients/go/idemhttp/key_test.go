package idemhttp

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

// What the cases of clients/conformance leave open.
func TestKeys(t *testing.T) {
	for value, want := range map[string]string{
		`"a";p=1;q`: "a", `"a"; p`: "a", `"a";`: "", `"a";=`: "", `"a";A`: "", `"a"bc`: "", `"a";pA`: "", `"a";1p`: "", `"a";p=`: "",
		`"a";p=(b)`: "", `"a\`: "", `"a";p="\";\\";q`: "a", `"a";p="b\"`: "", `"a";p="b"c`: "", `"\"\\"`: `"\`, `""`: "",
	} {
		key, err := keyOf(&http.Request{Header: http.Header{"Idempotency-Key": {value}}}, "Idempotency-Key", false)
		if key != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v; want %q", value, key, err, want)
		}
	}
	for _, c := range []struct {
		values []string
		want   error
	}{{nil, errNoKey}, {[]string{"a", "a"}, errTwoKeys}, {[]string{"bare"}, errMalformedKey}, {[]string{`"quoted"`}, nil}} {
		if _, err := keyOf(&http.Request{Header: http.Header{"Idempotency-Key": c.values}}, "idempotency-key", true); err != c.want {
			t.Errorf("%q: got %v, want %v", c.values, err, c.want)
		}
	}
}

// A goroutine of the handler may write after it has returned.
func TestAFinishedAnswerStaysAsItIs(t *testing.T) {
	r := newRecorder(10)
	r.Header().Set("Content-Type", "own")
	_, _ = r.Write([]byte("text"))
	if a, err := r.finish(); err != nil || a.header.Get("Content-Type") != "own" {
		t.Error(a, err)
	}
	r = newRecorder(10)
	_, _ = r.Write([]byte("sent"))
	a, err := r.finish()
	_, _ = r.Write([]byte("late"))
	r.Header().Set("X-Late", "1")
	if err != nil || string(a.body) != "sent" || a.header.Get("Content-Type") != "text/plain; charset=utf-8" ||
		a.header.Get("X-Late") != "" {
		t.Error(a, err)
	}
}

func TestWhatJSONBCanHold(t *testing.T) {
	for text, want := range map[string]bool{
		`{"a": [1, 2.5e3, "é", null]}`: true, `"plain"`: true, `{}`: true,
		`"\u0000"`: true, `"\uD83D\uDE00"`: true, "\"\xff\"": false, `1e99999`: false, `1E-100000`: false,
		strings.Repeat("[", 100) + strings.Repeat("]", 100): true,
		strings.Repeat("[", 300) + strings.Repeat("]", 300): false,
		strings.Repeat("9", 2000):                           false,
	} {
		if isStorable([]byte(text)) != want {
			t.Errorf("%.40q: want %v", text, want)
		}
	}
}

func TestScopes(t *testing.T) {
	long := strings.Repeat("x", 300)
	scopes := map[string]bool{}
	for _, c := range [][3]string{{"", "/a", ""}, {"", "/a", "b"}, {"", "/b", "b"}, {"", "/a", long}, {"", "/a", long + "x"},
		{"", "/a", "\xff"}, {"", "/a", "\x00"}, {"s", "/a", "b"}, {"s", "/a b", ""}, {"s POST", "/a", "b"}, {"s", "/a", "b "}} {
		scope := scopeOf(c[0], routeScope("POST", c[1], c[2]))
		if scopes[scope] || len(scope) > 255 || !utf8.ValidString(scope) {
			t.Errorf("%.20q: scope %q", c, scope)
		}
		scopes[scope] = true
	}
}

// The packages for all languages have the same scopes and fingerprints, or one key would
// be two operations for two services behind one address.
func TestSpellings(t *testing.T) {
	name := os.Getenv("SPELLINGS")
	if name == "" {
		name = "../../conformance/spellings.json"
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var spellings []struct {
		Service, Method, Route, Principal, Target, Type, Body string
		Scope                                                 string
		Fingerprint                                           any
	}
	if err := unmarshal(text, &spellings); err != nil || len(spellings) < 5 {
		t.Fatal(len(spellings), err)
	}
	for _, s := range spellings {
		if scope := scopeOf(s.Service, routeScope(s.Method, s.Route, s.Principal)); scope != s.Scope {
			t.Errorf("scope %q, not %q", scope, s.Scope)
		}
		r := httptest.NewRequest(s.Method, s.Target, nil)
		r.Header.Set("Content-Type", s.Type)
		print, err := fingerprint(r, []byte(s.Body), nil)
		if s.Body == "{broken" && err == errNotJSON {
			continue // no operation at all
		}
		if err != nil {
			t.Fatal(err)
		}
		var got any
		if text, err = json.Marshal(print); err == nil {
			err = unmarshal(text, &got)
		}
		if err != nil || !reflect.DeepEqual(got, s.Fingerprint) {
			t.Errorf("fingerprint %s, not %v: %v", text, s.Fingerprint, err)
		}
	}
}

// What HTTP has beside ASCII counts byte by byte, as in the other languages, and an empty query is none.
// The target is the one that the client has sent, also where a router has cut a prefix off.
func TestTargets(t *testing.T) {
	for target, want := range map[string]string{"/a": "/a", "/a?": "/a", "/a??": "/a??", "/a?b=%ff": "/a?b=%ff", "/\xff": "/\u00ff",
		"/\xfe": "/\u00fe", "/\u00e9": "/\u00c3\u00a9", "http://example.org/a": "/"} {
		r := httptest.NewRequest("POST", "/", nil)
		r.RequestURI = target
		r.Header.Set("Content-Type", "\xfe ;a=b")
		print, err := fingerprint(r, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := print.(map[string]any); got["target"] != want || got["type"] != "\u00fe" {
			t.Errorf("%q: %q", target, got)
		}
	}
}

// A handler may be able to read what nests deeper than encoding/json, so its bytes count, as in the other languages.
func TestDeepBodies(t *testing.T) {
	for _, depth := range []int{201, 10000, 20000} {
		r := httptest.NewRequest("POST", "/", nil)
		r.Header.Set("Content-Type", "application/json")
		print, err := fingerprint(r, []byte(strings.Repeat("[", depth)+strings.Repeat("]", depth)), nil)
		if err != nil {
			t.Fatal(depth, err)
		}
		if body, isText := print.(map[string]any)["body"].(string); !isText || !strings.HasPrefix(body, "sha256:") {
			t.Error(depth, print)
		}
	}
}

// A body that is packed counts by its bytes.
func TestPackedBodies(t *testing.T) {
	const packed = `"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"`
	for encoding, want := range map[string]string{"": "{}", "Identity": "{}", "gzip": packed, "identity,gzip": packed} {
		r := httptest.NewRequest("POST", "/", nil)
		r.Header.Set("Content-Type", "application/json")
		r.Header["Content-Encoding"] = strings.Split(encoding, ",")
		print, err := fingerprint(r, []byte("{}"), nil)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := json.Marshal(print.(map[string]any)["body"]); err != nil || string(body) != want {
			t.Errorf("%s: %s %v", encoding, body, err)
		}
	}
}

// unmarshal keeps each digit of a number.
func unmarshal(text []byte, target any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	return decoder.Decode(target)
}
