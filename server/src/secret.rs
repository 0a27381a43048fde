//! A secret that no log shows.

use std::fmt;

use axum::http::HeaderValue;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// An API key as its user writes it. Its debug form hides it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// A secret of `text`: visible ASCII characters, as an HTTP header can carry.
    ///
    /// # Errors
    ///
    /// One line without the text, if it has other characters or none.
    pub fn new(text: &str) -> Result<Self, String> {
        match !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(Secret(text.to_owned())),
            false => Err("a key has letters, digits and signs of ASCII, and no spaces".into()),
        }
    }

    /// The header `Authorization` of a client with this key. Its debug form hides it.
    pub(crate) fn bearer(&self) -> HeaderValue {
        let value = HeaderValue::try_from(format!("Bearer {}", self.0));
        let mut value = value.expect("a secret has visible characters");
        value.set_sensitive(true);
        value
    }

    /// Its hash.
    pub(crate) fn hash(&self) -> SecretHash {
        SecretHash::of(self.0.as_bytes())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

/// SHA-256 of a secret: the memory of the server holds no other form of it.
#[derive(Clone, Copy)]
pub(crate) struct SecretHash([u8; 32]);

impl SecretHash {
    /// The hash of a key that a request presents.
    pub(crate) fn of(presented: &[u8]) -> Self {
        SecretHash(Sha256::digest(presented).into())
    }

    /// Compares in a time that does not depend on the hashes.
    pub(crate) fn is(&self, other: &SecretHash) -> bool {
        self.0.ct_eq(&other.0).into()
    }

    /// The bytes of the hash.
    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}
