// Package jsontext makes JSON of values as applications mean them.
package jsontext

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"unicode/utf8"
)

// Marshal is json.Marshal, but it leaves <, > and & as they are.
func Marshal(value any) (json.RawMessage, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)
	return bytes.TrimSuffix(text.Bytes(), []byte("\n")), err
}

// Keeps says whether text, the JSON of a value, tells it from all others. If a string is no UTF-8,
// it does not: each byte that is none became the same \ufffd. Nor does that of a struct whose
// fields are all unexported: it is {}.
func Keeps(value any, text json.RawMessage) bool {
	return (!bytes.Contains(text, []byte(`\ufffd`)) || isUTF8(reflect.ValueOf(value))) &&
		(string(text) != "{}" || !isHidden(reflect.ValueOf(value)))
}

// isHidden: it has fields, and encoding/json sees none of them.
func isHidden(value reflect.Value) bool {
	for value.Kind() == reflect.Pointer {
		value = value.Elem()
	}
	if value.Kind() != reflect.Struct || value.NumField() == 0 {
		return false
	}
	fields := reflect.VisibleFields(value.Type())
	if value.CanAddr() {
		value = value.Addr() // a method of the pointer counts, too
	}
	_, isOfItsOwn := value.Interface().(json.Marshaler)
	return !isOfItsOwn && !slices.ContainsFunc(fields, func(field reflect.StructField) bool { return field.IsExported() })
}

func isUTF8(value reflect.Value) bool {
	switch value.Kind() {
	case reflect.String:
		return utf8.ValidString(value.String())
	case reflect.Pointer, reflect.Interface:
		return isUTF8(value.Elem())
	case reflect.Struct:
		for i := range value.NumField() {
			if !isUTF8(value.Field(i)) {
				return false
			}
		}
	case reflect.Slice, reflect.Array:
		for i := range value.Len() {
			if !isUTF8(value.Index(i)) {
				return false
			}
		}
	case reflect.Map:
		for each := value.MapRange(); each.Next(); {
			if !isUTF8(each.Key()) || !isUTF8(each.Value()) {
				return false
			}
		}
	}
	return true
}
