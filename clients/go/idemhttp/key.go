package idemhttp

import (
	"errors"
	"net/http"
	"strings"
)

var (
	errNoKey        = errors.New("the request has no idempotency key")
	errTwoKeys      = errors.New("the request has more than one idempotency key")
	errMalformedKey = errors.New("the idempotency key is malformed")
)

// maxKey is the longest key that the server takes.
const maxKey = 255

// keyOf reads the key of a request: a string of RFC 8941 or, unless strict, the
// same without quotes. Parameters after a string are ignored, as RFC 8941 has it.
func keyOf(r *http.Request, header string, strict bool) (string, error) {
	values := r.Header.Values(header)
	if len(values) == 0 {
		return "", errNoKey
	}
	if len(values) > 1 {
		return "", errTwoKeys
	}
	value := strings.Trim(values[0], " \t")
	key, ok := "", false
	if strings.HasPrefix(value, `"`) {
		key, ok = parseString(value)
	} else {
		key, ok = value, !strict && isBare(value)
	}
	if !ok || key == "" || len(key) > maxKey {
		return "", errMalformedKey
	}
	return key, nil
}

// parseString reads an sf-string, RFC 8941 section 4.2.5.
func parseString(text string) (string, bool) {
	var key strings.Builder
	for i := 1; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '"':
			return key.String(), areParameters(text[i+1:])
		case c == '\\':
			i++
			if i == len(text) || text[i] != '"' && text[i] != '\\' {
				return "", false
			}
			key.WriteByte(text[i])
		case c < ' ' || c > '~':
			return "", false
		default:
			key.WriteByte(c)
		}
	}
	return "", false
}

// areParameters accepts what may follow an item: nothing, or parameters with bare
// values. They are ignored.
func areParameters(text string) bool {
	for text != "" {
		if text[0] != ';' {
			return false
		}
		parameter, rest, more := strings.Cut(strings.TrimLeft(text[1:], " "), ";")
		name, value, hasValue := strings.Cut(parameter, "=")
		if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_-.*") != "" || !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz*", rune(name[0])) ||
			hasValue && !isBare(value) {
			return false
		}
		text = rest
		if more {
			text = ";" + rest
		}
	}
	return true
}

// isBare: visible ASCII without what delimits strings, lists and parameters.
func isBare(text string) bool {
	for i := 0; i < len(text); i++ {
		if text[i] <= ' ' || text[i] > '~' || strings.IndexByte(`"\,;()`, text[i]) >= 0 {
			return false
		}
	}
	return text != ""
}
