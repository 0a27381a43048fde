//! Errors of the hub: one line, with the remedy.

use std::io::ErrorKind;

use hf_hub::api::sync::ApiError;

use crate::error::Error;

/// A failed request or download.
#[derive(Debug)]
pub(super) struct Failure {
    /// The error.
    pub(super) error: Error,
    /// True if the server did not answer to the end, or cannot now: 429 or 5xx.
    pub(super) is_unreachable: bool,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure { error, is_unreachable: false }
    }
}

/// The failure of a request to `endpoint` about `what`, a `repository` or its file.
pub(super) fn of(error: ApiError, endpoint: &str, repository: &str, what: &str) -> Failure {
    let message = match error {
        ApiError::RequestError(error) => match *error {
            ureq::Error::StatusCode(status) => {
                let error = of_status(status, endpoint, repository, what);
                return Failure { error, is_unreachable: status == 429 || status >= 500 };
            }
            ureq::Error::Json(error) => {
                format!("{endpoint} answers no JSON ({error}): check HF_ENDPOINT")
            }
            error => {
                let error = Error::failed(format!(
                    "cannot reach {endpoint}: {error}; check the network, HF_ENDPOINT and \
                     HTTPS_PROXY, and run the command again to resume"
                ));
                return Failure { error, is_unreachable: true };
            }
        },
        ApiError::MissingHeader(header) | ApiError::InvalidHeader(header) => {
            format!("{what}: {endpoint} answers without a valid {header} header: check HF_ENDPOINT")
        }
        ApiError::LockAcquisition(_) => {
            format!("{what}: another program is downloading it; run the command again after it")
        }
        ApiError::IoError(error) => {
            let is_unreachable = !is_local(&error);
            return Failure { error: of_io(&error, what), is_unreachable };
        }
        error => format!("{what}: {error}; run the command again"),
    };
    Error::failed(message).into()
}

fn of_status(status: u16, endpoint: &str, repository: &str, what: &str) -> Error {
    match status {
        401 => Error::failed(format!(
            "{what}: {endpoint} asks for a token (401): check the name, and set HF_TOKEN for a \
             private or gated model"
        )),
        403 => Error::failed(format!(
            "{what}: access is denied (403): accept the model's terms at {endpoint}/{repository}, \
             and set HF_TOKEN to a token of that account"
        )),
        404 => Error::usage(format!("{what}: {endpoint} has no such model (404): check the name")),
        429 => Error::failed(format!(
            "{what}: {endpoint} has had too many requests (429): wait, or set HF_TOKEN"
        )),
        _ => Error::failed(format!("{what}: {endpoint} answers {status}: try again later")),
    }
}

/// True if the cache cannot be written; other errors are of the connection.
pub(super) fn is_local(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::StorageFull
            | ErrorKind::QuotaExceeded
            | ErrorKind::PermissionDenied
            | ErrorKind::ReadOnlyFilesystem
    )
}

/// The error of writing a file, or of receiving it.
pub(super) fn of_io(error: &std::io::Error, what: &str) -> Error {
    Error::failed(match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            format!("{what}: {error}: free some space, or set HF_HOME to a folder on another disk")
        }
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            format!("{what}: cannot write the cache: {error}; set HF_HOME to a folder of your own")
        }
        _ => {
            format!("{what}: the download broke off ({error}): run the command again to resume it")
        }
    })
}
