//! A Unix socket that its owner alone can connect to, removed at the end.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::net::UnixListener;
pub(crate) use tokio::net::UnixStream;

/// A listening socket.
pub(crate) struct UnixSocket {
    pub listener: UnixListener,
    pub file: Arc<SocketFile>,
}

/// The file of a socket, as long as no other server has replaced it.
#[derive(Debug)]
pub(crate) struct SocketFile {
    /// Where clients connect.
    pub path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl UnixSocket {
    /// Listens at `path`. A socket there that no server listens on, as a process leaves it that was
    /// killed, is replaced; anything else is an error.
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        check_free(path)?;
        // Made under another name, so that the socket has its mode before it has its name.
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}", std::process::id()));
        let new = PathBuf::from(name);
        let listener = UnixListener::bind(&new)?;
        let file = fs::set_permissions(&new, Permissions::from_mode(0o600))
            .and_then(|()| fs::rename(&new, path))
            .and_then(|()| identity(path));
        match file {
            Ok(identity) => {
                let file = SocketFile { path: path.to_owned(), identity };
                Ok(UnixSocket { listener, file: Arc::new(file) })
            }
            Err(error) => {
                let _ = fs::remove_file(&new);
                Err(error)
            }
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Returns an error if there is something at `path` that is in use, or is no socket.
fn check_free(path: &Path) -> io::Result<()> {
    let metadata = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        metadata => metadata?,
    };
    if !metadata.file_type().is_socket() {
        let why = "there is a file that is no socket: choose another path";
        return Err(io::Error::new(ErrorKind::AlreadyExists, why));
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Err(io::Error::new(ErrorKind::AddrInUse, "another server listens there")),
        Err(_) => Ok(()),
    }
}

impl SocketFile {
    /// Removes the file, unless it is another server's by now.
    pub(crate) fn remove(&self) {
        if identity(&self.path).is_ok_and(|identity| identity == self.identity) {
            // Nothing is lost if it stays: the next server replaces it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        self.file.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_is_private_replaces_a_dead_one_and_nothing_else() {
        let folder = std::env::temp_dir().join(format!("trail-uds-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("socket");
        let socket = UnixSocket::bind(&path).expect("a socket");
        let mode = fs::metadata(&path).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let refused = UnixSocket::bind(&path).err().expect("in use");
        assert_eq!(refused.kind(), ErrorKind::AddrInUse);
        assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 1);
        drop(socket);
        assert!(!path.exists());
        // As a process leaves it that was killed.
        drop(std::os::unix::net::UnixListener::bind(&path).expect("a socket"));
        let second = UnixSocket::bind(&path).expect("the dead one is replaced");
        fs::remove_file(&path).expect("removed");
        fs::write(&path, "text").expect("written");
        drop(second);
        assert!(path.exists(), "the file is another's");
        let refused = UnixSocket::bind(&path).err().expect("a file");
        assert_eq!(refused.kind(), ErrorKind::AlreadyExists);
        fs::remove_dir_all(&folder).expect("removed");
    }
}
