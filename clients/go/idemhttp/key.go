package idemhttp

import (
	"errors"
	"net/http"
	"regexp"
	"strings"
)

var (
	errNoKey        = errors.New("the request has no idempotency key")
	errTwoKeys      = errors.New("the request has more than one idempotency key")
	errMalformedKey = errors.New("the idempotency key is malformed")
)

// maxKey is the longest key that the server takes.
const maxKey = 255

const (
	// visible ASCII without what delimits strings, lists and parameters
	bare = `[!#-'*+\--:<-\[\]-~]+`
	// RFC 8941, 3.3.3: printable ASCII; a quote and a backslash are escaped
	quoted    = `"((?:[ !#-\[\]-~]|\\["\\])*)"`
	parameter = `; *[a-z*][a-z0-9_.*-]*(?:=` + bare + `|=` + quoted + `)?`
)

var (
	bareKey   = regexp.MustCompile(`^` + bare + `$`)
	quotedKey = regexp.MustCompile(`^` + quoted + `(?:` + parameter + `)*$`)
	unescape  = strings.NewReplacer(`\\`, `\`, `\"`, `"`)
)

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
	key := strings.Trim(values[0], " \t")
	if match := quotedKey.FindStringSubmatch(key); match != nil {
		key = unescape.Replace(match[1])
	} else if strict || !bareKey.MatchString(key) {
		return "", errMalformedKey
	}
	if key == "" || len(key) > maxKey {
		return "", errMalformedKey
	}
	return key, nil
}
