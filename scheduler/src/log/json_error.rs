//! Messages for lines that are not JSON.

/// The message for a line that is not JSON, or not of the format. The text that was parsed is one
/// line, whose number in the file the caller knows.
pub(super) fn json_error(error: &serde_json::Error) -> String {
    error.to_string().replace(" at line 1 column", " at column")
}
