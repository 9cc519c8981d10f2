//! Listening unix sockets. Only the user who creates a socket can connect to it (mode 0600).
//!
//! Why the mode is set before the file exists: between a `bind` and a `chmod`, other users could
//! connect, and the `chmod` would follow a link that another user had put at the path.

use rustix::fs::{FileType, Mode, fchmod, lstat, unlink};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use std::os::fd::OwnedFd;
use std::path::Path;

/// Connections that may wait to be accepted. All ports of a fabric may connect at once, and most
/// fabrics have fewer ports. Linux limits the backlog to `net.core.somaxconn`.
const BACKLOG_CONNECTIONS_MAX: i32 = 4096;

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// Listens at a path. The socket of a dead server is replaced. Any other file is kept, and the
/// error is [`Errno::ADDRINUSE`].
pub fn listen_at(path: &Path, kind: SocketType) -> Result<OwnedFd, Errno> {
    let fd = socket_with(AddressFamily::UNIX, kind, FLAGS, None)?;
    fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
    let address = SocketAddrUnix::new(path)?;
    match bind(&fd, &address) {
        Err(Errno::ADDRINUSE) if is_socket(path) && is_dead(&address, kind) => {
            unlink(path)?;
            bind(&fd, &address)?;
        }
        other => other?,
    }
    listen(&fd, BACKLOG_CONNECTIONS_MAX)?;
    Ok(fd)
}

fn is_socket(path: &Path) -> bool {
    lstat(path).is_ok_and(|file| FileType::from_raw_mode(file.st_mode).is_socket())
}

/// Whether no process listens at the address. A regular file refuses connections in the same way,
/// so [`is_socket`] comes first.
fn is_dead(address: &SocketAddrUnix, kind: SocketType) -> bool {
    let probe = socket_with(AddressFamily::UNIX, kind, FLAGS, None);
    probe.and_then(|probe| connect(&probe, address)) == Err(Errno::CONNREFUSED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::path::PathBuf;

    const KINDS: [SocketType; 2] = [SocketType::STREAM, SocketType::SEQPACKET];

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("pollux-listen-{name}-{}", std::process::id()))
    }

    #[test]
    fn files_that_are_no_sockets_stay() {
        for kind in KINDS {
            let (file, link) = (path("file"), path("link"));
            fs::write(&file, "precious").unwrap();
            symlink(&file, &link).unwrap();
            for path in [&file, &link] {
                assert_eq!(listen_at(path, kind).err(), Some(Errno::ADDRINUSE));
            }
            assert_eq!(fs::read_to_string(&link).unwrap(), "precious");
            fs::remove_file(&link).unwrap();
            fs::remove_file(&file).unwrap();
        }
    }

    #[test]
    fn sockets_of_the_dead_are_replaced_and_others_are_not() {
        for kind in KINDS {
            let path = path("dead");
            let first = listen_at(&path, kind).unwrap();
            assert_eq!(fs::symlink_metadata(&path).unwrap().mode() & 0o7777, 0o600);
            assert_eq!(listen_at(&path, kind).err(), Some(Errno::ADDRINUSE), "it is alive");
            let other = KINDS.into_iter().find(|other| *other != kind).unwrap();
            assert_eq!(listen_at(&path, other).err(), Some(Errno::ADDRINUSE), "whoever asks");
            drop(first);
            let _second = listen_at(&path, kind).unwrap();
            fs::remove_file(&path).unwrap();
        }
    }
}
