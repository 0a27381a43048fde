//! Cross-origin requests of web pages (CORS): preflights and headers for the origins that were
//! named.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};
use trail_cli::Error;

use crate::error::ApiError;

/// Time for which a browser may keep the answer to a preflight.
const MAX_AGE: Duration = Duration::from_secs(600);
/// Name for all origins.
const ANY: &str = "*";

/// The origins whose pages may use the server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origins(Vec<HeaderValue>);

impl Origins {
    /// No origin.
    #[cfg(test)]
    pub(crate) const NONE: Origins = Origins(Vec::new());

    /// The origins `names`, such as `https://app.example`, or `*` for all.
    pub(crate) fn new(names: &[String]) -> Result<Self, Error> {
        let origin = |name: &String| {
            let uri: Option<Uri> = name.parse().ok();
            let is_origin = uri.is_some_and(|uri| {
                let scheme = uri.scheme_str().map(|scheme| format!("{scheme}://"));
                let rest = scheme.and_then(|scheme| name.strip_prefix(&scheme));
                let authority = uri.authority();
                rest.is_some_and(|rest| authority.is_some_and(|host| host.as_str() == rest))
            });
            let value = HeaderValue::from_str(&name.to_ascii_lowercase()).ok();
            value.filter(|_| is_origin || name == ANY).ok_or_else(|| {
                Error::usage(format!(
                    "--cors-origin {name}: give an origin as browsers send it, such as \
                     https://app.example, without a path"
                ))
            })
        };
        names.iter().map(origin).collect::<Result<_, _>>().map(Origins)
    }

    /// True if pages of `origin` may use the server.
    pub(crate) fn allow(&self, origin: &HeaderValue) -> bool {
        self.0.iter().any(|allowed| allowed == origin || allowed == ANY)
    }

    /// `router` with answers to preflights of these origins, and their headers in its responses.
    pub(crate) fn apply<S: Clone + Send + Sync + 'static>(self, router: Router<S>) -> Router<S> {
        if self.0.is_empty() {
            return router;
        }
        let origins = match self.0.iter().any(|allowed| allowed == ANY) {
            true => AllowOrigin::any(),
            false => AllowOrigin::list(self.0.clone()),
        };
        let exposed = ["x-request-id", "request-id"].map(HeaderName::from_static);
        let cors = CorsLayer::new()
            .allow_origin(origins)
            .allow_methods([Method::GET, Method::POST, Method::DELETE])
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers(exposed.into_iter().chain([RETRY_AFTER]).collect::<Vec<_>>())
            .max_age(MAX_AGE);
        router.layer(cors).layer(from_fn_with_state(Arc::new(self), refuse_foreign))
    }
}

/// Refuses preflights of other origins, which the layer of CORS would answer without its headers.
async fn refuse_foreign(
    State(origins): State<Arc<Origins>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let headers = request.headers();
    let foreign = headers.get(ORIGIN).filter(|origin| !origins.allow(origin));
    match foreign.filter(|_| is_preflight(request.method(), headers)) {
        Some(origin) => {
            let origin = origin.to_str().unwrap_or_default();
            let why = format!("pages of '{origin}' may not use this server (--cors-origin)");
            Err(ApiError::forbidden(why))
        }
        None => Ok(next.run(request).await),
    }
}

fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    method == Method::OPTIONS && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_compared_as_browsers_send_them() {
        let names = ["https://App.example", "http://localhost:3000"].map(str::to_owned);
        let origins = Origins::new(&names).expect("origins");
        let allows = |origin: &'static str| origins.allow(&HeaderValue::from_static(origin));
        assert!(allows("https://app.example") && allows("http://localhost:3000"));
        for other in ["http://app.example", "https://app.example:444", "http://localhost", "null"] {
            assert!(!allows(other), "{other}");
        }
        let any = Origins::new(&["*".to_owned()]).expect("all");
        assert!(any.allow(&HeaderValue::from_static("https://b.example")));
        for bad in ["app.example", "https://app.example/", "https://", "", "a b", "https://a/b"] {
            assert!(Origins::new(&[bad.to_owned()]).is_err(), "{bad}");
        }
    }
}
