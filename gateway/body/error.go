package body

import (
	"fmt"

	"penstock/gateway/body/scan"
)

// The codes of an [Error], all of them 400 with type invalid_request_error.
const (
	CodeInvalidJSON  = "invalid_json"               // no JSON, or nested too deeply
	CodeInvalidValue = "invalid_value"              // wrong type, out of range, given twice
	CodeMissing      = "missing_required_parameter" // not there
)

// Error is a body that cannot be served, in OpenAI's words.
type Error struct {
	Param   string // the field it is about, like messages[0].content; empty when it is the body itself
	Code    string
	Message string
}

func (e *Error) Error() string { return e.Message }

func syntax(err *scan.SyntaxError) *Error {
	return &Error{Code: CodeInvalidJSON, Message: "The request body is not valid JSON: " + err.Error() + "."}
}

func invalid(param, format string, args ...any) *Error {
	return &Error{Param: param, Code: CodeInvalidValue, Message: fmt.Sprintf(format, args...)}
}

// wrongType says that the value at b[i] is not what param takes; want has its article.
func wrongType(param, want string, b []byte, i int) *Error {
	if _, err := scan.Value(b, i, 0); err != nil {
		return syntax(err)
	}
	got := scan.KindAt(b, i).String()
	if end, integer, err := scan.Number(b, i); err == nil && end > i {
		if got = "an integer"; !integer {
			got = "a decimal number"
		}
	}
	return invalid(param, "Invalid type for '%s': expected %s, but got %s instead.", param, want, got)
}

func belowMin(param string, minimum int, got []byte) *Error {
	return invalid(param, "Invalid '%s': integer below minimum value. Expected a value >= %d, but got %s instead.", param, minimum, clip(got))
}

func aboveMax(param string, maximum int, got []byte) *Error {
	return invalid(param, "Invalid '%s': integer above maximum value. Expected a value <= %d, but got %s instead.", param, maximum, clip(got))
}

func emptyString(param string) *Error {
	return invalid(param, "Invalid '%s': empty string. Expected a string with minimum length 1, but got an empty string instead.", param)
}

func emptyArray(param string) *Error {
	return invalid(param, "Invalid '%s': empty array. Expected an array with minimum length 1, but got an empty array instead.", param)
}

func tooMany(param string, maximum int) *Error {
	return invalid(param, "Invalid '%s': array too long. Expected an array with maximum length %d.", param, maximum)
}

func missing(param string) *Error {
	return &Error{Param: param, Code: CodeMissing, Message: "Missing required parameter: '" + param + "'."}
}

func duplicate(param string) *Error {
	return invalid(param, "Invalid '%s': the field is given more than once.", param)
}

func escapedKey(param string) *Error {
	return invalid(param, "Invalid '%s': the field's name is spelled with escapes. Expected it in plain characters.", param)
}

// clip keeps a value that is quoted in a message short.
func clip(raw []byte) string {
	const most = 40
	if len(raw) > most {
		return string(raw[:most]) + "…"
	}
	return string(raw)
}
