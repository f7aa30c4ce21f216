package simserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kvlane/kvlane/workers/engine/sim"
)

// maxBody bounds a request's body, bytes. A prompt of a million token ids
// written out has some 7 MB.
const maxBody = 64 << 20

// apiError is vLLM's error body. Its code is the HTTP status, as vLLM has it,
// where OpenAI has a word.
type apiError struct {
	Status  int
	Type    string
	Param   string
	Message string
}

func (e *apiError) Error() string { return e.Message }

// badRequest is vLLM's answer to a value it does not take. param is the member
// at fault; empty for none.
func badRequest(param, format string, a ...any) *apiError {
	return &apiError{Status: http.StatusBadRequest, Type: "BadRequestError", Param: param, Message: fmt.Sprintf(format, a...)}
}

// asAPIError chooses the answer to any error of a handler.
func asAPIError(err error) *apiError {
	var api *apiError
	var refused *sim.RequestError
	switch {
	case errors.As(err, &api):
		return api
	case errors.As(err, &refused):
		return badRequest("", "%s", refused.Detail)
	case errors.Is(err, errStopped), errors.Is(err, context.Canceled):
		return &apiError{Status: http.StatusServiceUnavailable, Type: "ServiceUnavailableError", Message: err.Error()}
	}
	return &apiError{Status: http.StatusInternalServerError, Type: "InternalServerError", Message: err.Error()}
}

type errorBody struct {
	Error errorInfo `json:"error"`
}

type errorInfo struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    int     `json:"code"`
}

func (e *apiError) body() errorBody {
	b := errorBody{errorInfo{Message: e.Message, Type: e.Type, Code: e.Status}}
	if e.Param != "" {
		b.Error.Param = &e.Param
	}
	return b
}

// decode reads a JSON body strictly: a member of the wrong type is a 400,
// unknown members are not looked at, the last of repeated members counts.
func (s *Server) decode(w http.ResponseWriter, r *http.Request, into any) error {
	err := json.UnmarshalRead(http.MaxBytesReader(w, r.Body, maxBody), into,
		jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	var tooLarge *http.MaxBytesError
	var api *apiError
	var semantic *json.SemanticError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &tooLarge):
		return &apiError{
			Status: http.StatusRequestEntityTooLarge, Type: "RequestEntityTooLargeError",
			Message: fmt.Sprintf("The request body is larger than %d bytes.", maxBody),
		}
	case errors.As(err, &api):
		return api
	case errors.As(err, &semantic):
		param := strings.ReplaceAll(strings.TrimPrefix(string(semantic.JSONPointer), "/"), "/", ".")
		return badRequest(param, "Invalid value at %q: want %v, got %v.", param, semantic.GoType, semantic.JSONKind)
	}
	return badRequest("", "The request body is not valid JSON: %v.", err)
}

// writeJSON answers with a value.
func writeJSON(w http.ResponseWriter, status int, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// A client that went away is no fault of the engine.
	_, _ = w.Write(b) //nolint:gosec // JSON, see the header
	return nil
}

// writeText answers with text from a client's name in it: never as a page.
func writeText(w http.ResponseWriter, text string) error {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte(text)) // as above
	return nil
}
