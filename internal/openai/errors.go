package openai

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// maxQuoted is the longest piece of a client's text repeated in an error, in
// bytes.
const maxQuoted = 200

// Error is a refusal in the form that OpenAI clients understand.
type Error struct {
	// Status is the HTTP status, 400 to 599.
	Status int
	// Type is OpenAI's class of the error, such as "invalid_request_error".
	Type string
	// Code is a short machine-readable word; empty for none.
	Code string
	// Message is for people.
	Message string
	// Param is the member of the body at fault, such as "messages[3]"; empty if
	// no single one is.
	Param string
}

// Error is the status and the message.
func (e *Error) Error() string {
	return strconv.Itoa(e.Status) + " " + e.Message
}

// BadRequest is a 400 for a body that cannot be used. param names the member
// at fault; empty if there is none.
func BadRequest(code, param, message string) *Error {
	return &Error{Status: http.StatusBadRequest, Type: "invalid_request_error", Code: code, Param: param, Message: message}
}

// ModelNotFound is a 404 for a model that no worker serves.
func ModelNotFound(model string) *Error {
	return &Error{
		Status: http.StatusNotFound, Type: "invalid_request_error", Code: "model_not_found", Param: "model",
		Message: fmt.Sprintf("The model %q does not exist.", clip(model)),
	}
}

// TooLarge is a 413 for a body over limit bytes.
func TooLarge(limit int) *Error {
	return &Error{
		Status: http.StatusRequestEntityTooLarge, Type: "invalid_request_error", Code: "request_too_large",
		Message: fmt.Sprintf("The request body is larger than %d bytes.", limit),
	}
}

// TooManyRequests is a 429: the pool takes no more work now.
func TooManyRequests(message string) *Error {
	return &Error{Status: http.StatusTooManyRequests, Type: "rate_limit_error", Code: "rate_limit_exceeded", Message: message}
}

// BadGateway is a 502: the engine's answer could not be used.
func BadGateway(message string) *Error {
	return &Error{Status: http.StatusBadGateway, Type: "api_error", Code: "bad_gateway", Message: message}
}

// Unavailable is a 503: no worker can take the request.
func Unavailable(message string) *Error {
	return &Error{Status: http.StatusServiceUnavailable, Type: "service_unavailable_error", Code: "service_unavailable", Message: message}
}

// ErrorBody is the JSON body for an error. An empty Param or Code is null, as
// OpenAI writes it.
func ErrorBody(e *Error) []byte {
	b := append(make([]byte, 0, 128+len(e.Message)), `{"error":{"message":`...)
	b = appendQuoted(b, e.Message)
	b = append(b, `,"type":`...)
	b = appendQuoted(b, e.Type)
	b = append(b, `,"param":`...)
	b = appendQuotedOrNull(b, e.Param)
	b = append(b, `,"code":`...)
	b = appendQuotedOrNull(b, e.Code)
	return append(b, "}}"...)
}

// appendQuoted appends s as a JSON string; bytes that are not UTF-8 become
// U+FFFD.
func appendQuoted(b []byte, s string) []byte {
	// The only error there is reports those replacements.
	b, _ = jsontext.AppendQuote(b, s)
	return b
}

func appendQuotedOrNull(b []byte, s string) []byte {
	if s == "" {
		return append(b, "null"...)
	}
	return appendQuoted(b, s)
}

func clip(s string) string {
	if len(s) > maxQuoted {
		return s[:maxQuoted] + "..."
	}
	return s
}
