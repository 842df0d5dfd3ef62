package idemhttp

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"unicode/utf8"
)

// fingerprint is what makes two requests the same: method, target, media type and
// body. A JSON body counts as jsonb compares it; any other by its SHA-256.
func fingerprint(r *http.Request, body []byte) (any, error) {
	mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		mediaType = ""
	}
	request := map[string]any{"method": r.Method, "target": r.URL.RequestURI(), "type": mediaType, "body": nil}
	isJSON := mediaType == "application/json" || strings.HasSuffix(mediaType, "+json")
	switch {
	case len(body) == 0:
	case isJSON && isStorable(body):
		request["body"] = json.RawMessage(body)
	default:
		sum := sha256.Sum256(body)
		request["body"] = "sha256:" + hex.EncodeToString(sum[:])
	}
	return request, nil
}

// maxDepth is far below what exhausts the server's stack.
const maxDepth = 200

// isStorable says whether a text is JSON of a depth and with numbers that jsonb can
// hold. Where in doubt, no: the bytes are compared then. A string that jsonb cannot
// hold, such as one with NUL, is refused by the begin.
func isStorable(text []byte) bool {
	if !utf8.Valid(text) || !json.Valid(text) {
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

// scopeOf is the name space of a route's and a principal's keys. The server takes
// 255 characters, so a longer one is hashed.
func scopeOf(route, principal string) string {
	scope := route + "#" + principal
	if len(scope) <= 255 && utf8.ValidString(scope) && !strings.ContainsRune(scope, 0) {
		return scope
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(scope)))
}
