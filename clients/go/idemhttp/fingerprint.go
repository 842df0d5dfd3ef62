package idemhttp

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"unicode/utf8"
)

// fingerprint is what makes two requests the same: method, target, media type and
// body. A JSON body counts as jsonb compares it; any other by its SHA-256, and so do the
// bytes of one with a Content-Encoding. own stands in place of media type and body. The
// packages for other languages make the same.
func fingerprint(r *http.Request, body []byte, own func(*http.Request, []byte) (any, error)) (any, error) {
	request := map[string]any{"method": strings.ToUpper(r.Method), "target": targetOf(r)}
	if own != nil {
		value, err := own(r, body)
		request["own"] = value
		return request, err
	}
	mediaType := mediaTypeOf(r)
	request["type"], request["body"] = mediaType, nil
	isJSON := (mediaType == "application/json" || strings.HasSuffix(mediaType, "+json")) && !isEncoded(r)
	switch {
	case len(body) == 0:
	case isJSON && isBroken(body):
		return nil, errNotJSON
	case isJSON && isStorable(body):
		request["body"] = json.RawMessage(body)
	default:
		sum := sha256.Sum256(body)
		request["body"] = "sha256:" + hex.EncodeToString(sum[:])
	}
	return request, nil
}

// isBroken knows text that is no JSON. What nests deeper than encoding/json reads may be some.
func isBroken(text []byte) bool {
	err := json.Unmarshal(text, &json.RawMessage{})
	return err != nil && !strings.Contains(err.Error(), "exceeded max depth")
}

// targetOf is the target as it was sent, also where a router has cut a prefix off. A question
// mark without a query is none, which not all frameworks tell of.
func targetOf(r *http.Request) string {
	target := r.RequestURI
	if !strings.HasPrefix(target, "/") {
		target = r.URL.RequestURI()
	}
	if path, query, _ := strings.Cut(target, "?"); query == "" {
		target = path
	}
	return latin1(target)
}

func mediaTypeOf(r *http.Request) string {
	mediaType, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	return strings.ToLower(strings.TrimSpace(latin1(mediaType)))
}

// latin1 makes a character of each byte, as the other languages read what HTTP has beside ASCII.
// As JSON, bytes that are no UTF-8 would all be the same.
func latin1(text string) string {
	characters := make([]rune, len(text))
	for i := range characters {
		characters[i] = rune(text[i])
	}
	return string(characters)
}

func isEncoded(r *http.Request) bool {
	for _, encoding := range r.Header.Values("Content-Encoding") {
		if encoding = strings.TrimSpace(encoding); encoding != "" && !strings.EqualFold(encoding, "identity") {
			return true
		}
	}
	return false
}

// maxDepth is far below what exhausts the server's stack.
const maxDepth = 200

// isStorable says whether JSON is text of a depth and with numbers that jsonb can
// hold. Where in doubt, no: the bytes are compared then. A string that jsonb cannot
// hold, such as one with NUL, is refused by the begin.
func isStorable(text []byte) bool {
	if !utf8.Valid(text) {
		return false
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	for depth := 0; depth <= maxDepth; {
		token, err := decoder.Token()
		if err == io.EOF {
			return true
		}
		switch token := token.(type) {
		case json.Delim:
			depth += map[json.Delim]int{'{': 1, '[': 1, '}': -1, ']': -1}[token]
		case json.Number:
			if _, exponent, _ := strings.Cut(strings.ToLower(token.String()), "e"); len(exponent) > 4 || len(token) > 1000 {
				return false
			}
		}
		if err != nil {
			return false
		}
	}
	return false
}

// scopeOf is the name space of a service's keys, for one route and principal. own stands
// in place of these. Spaces are between the parts, so a part has none but the last. The
// server takes 255 characters of UTF-8 and no NUL, so any other text is hashed. The packages for other languages
// make the same.
func scopeOf(service, own string) string {
	scope := own
	if service != "" {
		scope = escape(service) + " " + own
	}
	if utf8.RuneCountInString(scope) <= 255 && utf8.ValidString(scope) && !strings.ContainsRune(scope, 0) {
		return scope
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(scope)))
}

// routeScope is the scope of one route and principal within a service.
func routeScope(method, route, principal string) string {
	return strings.ToUpper(method) + " " + escape(route) + " " + principal
}

func escape(part string) string {
	return strings.ReplaceAll(strings.ReplaceAll(part, "%", "%25"), " ", "%20")
}
