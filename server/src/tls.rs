//! TLS of the server's own: certificate and key in PEM files, replaced when they are read again.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use trail_cli::Error;

/// Certificate and key. A connection keeps those that it began with.
pub(crate) struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    current: RwLock<TlsAcceptor>,
}

impl Tls {
    /// Reads the files: the server's certificate with those of its issuers, and its private key.
    pub(crate) fn open(certificate: &Path, key: &Path) -> Result<Self, Error> {
        let current = RwLock::new(acceptor(certificate, key)?);
        Ok(Tls { certificate: certificate.to_owned(), key: key.to_owned(), current })
    }

    /// Reads the files again. On an error the present ones stay.
    pub(crate) fn reload(&self) -> Result<(), Error> {
        let new = acceptor(&self.certificate, &self.key)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// The present certificate and key, for a connection.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// File of the certificate.
    pub(crate) fn certificate(&self) -> &Path {
        &self.certificate
    }
}

fn acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor, Error> {
    let (shown, shown_key) = (certificate.display(), key.display());
    let unreadable =
        |file: &dyn std::fmt::Display, why| Error::usage(format!("cannot read {file}: {why}"));
    let chain: Vec<_> = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .map_err(|error| unreadable(&shown, error.to_string()))?;
    if chain.is_empty() {
        return Err(unreadable(&shown, "there is no certificate in PEM".into()));
    }
    let private = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| unreadable(&shown_key, error.to_string()))?;
    let unusable = |error: tokio_rustls::rustls::Error| {
        Error::usage(format!("{shown} and {shown_key} cannot be used: {error}"))
    };
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(unusable)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
