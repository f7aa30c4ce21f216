package openai

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"
)

// SetModel is the edit that gives a body another model.
func SetModel(name string) Edit { return Edit{Name: "model", Value: appendQuoted(nil, name)} }

// ModelIn looks for the model in the beginning of a body, of several names the last.
// False if it is not there whole, or if what is there is no JSON object.
func ModelIn(beginning []byte) (model string, ok bool) {
	d := jsontext.NewDecoder(bytes.NewBuffer(beginning), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if t, err := d.ReadToken(); err != nil || t.Kind() != '{' {
		return "", false
	}
	for d.PeekKind() == '"' {
		name, err := d.ReadToken()
		if err != nil {
			break
		}
		isModel := name.String() == "model"
		value, err := d.ReadValue()
		if err != nil {
			break
		}
		if isModel {
			if model, ok = "", isString(value); ok {
				model = string(unquote(value))
			}
		}
	}
	return model, ok
}
