//! The protocol of a service manager such as systemd (sd_notify(3), sd_listen_fds(3)): a node
//! reports its state and that it is alive, and stores descriptors for the process after it.
//!
//! | message | when |
//! |---|---|
//! | `READY=1` | the admin socket listens, workers run, and each device and shadow was tried once |
//! | `STATUS=` | with `READY=1`, and whenever the number or a state of interfaces changes |
//! | `RELOADING=1`, `READY=1` | before and after a reload; the second has the result as `STATUS=` |
//! | `WATCHDOG=1` | twice per watchdog timeout, if every worker has breathed since the last one |
//! | `FDSTORE=1`, `FDSTOREREMOVE=1` | a shadow was created, or was removed |
//! | `STOPPING=1` | the node begins to leave its subnets |
//!
//! Why `READY=1` does not wait until interfaces are up: without a cable or a subnet manager, the
//! boot would hang, and the manager would finally end the node.
//!
//! 1. [`notify_socket`]: messages to the manager;
//! 2. [`watchdog`]: when to send `WATCHDOG=1`.

pub mod notify_socket;
pub mod watchdog;

use notify_socket::NotifySocket;
use pollux_mem::inherited::inherited;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// The service manager that started this process, or none.
#[derive(Debug, Default)]
pub struct ServiceManager {
    pub(crate) socket: Arc<NotifySocket>,
    pub(crate) watchdog: Option<Duration>,
    /// Descriptors that an earlier process had kept for this one, with their names.
    pub(crate) kept: Vec<(String, OwnedFd)>,
}

#[derive(Debug, thiserror::Error)]
#[error(
    "NOTIFY_SOCKET is {address:?}, where no service manager can be told: {error}; write the path \
     of its socket, or @NAME, or unset it"
)]
#[non_exhaustive]
pub struct ServiceError {
    address: String,
    error: io::Error,
}

impl ServiceManager {
    /// The manager that the environment names. Takes the descriptors that this process inherited,
    /// so a second call has none of them.
    #[expect(clippy::disallowed_methods, reason = "a manager speaks to services by environment")]
    pub fn from_environment() -> Result<Self, ServiceError> {
        Self::from_variables(|name| std::env::var(name).ok(), std::process::id())
    }

    /// Does the same, with the environment as a function, for a process with this ID. Variables for
    /// another process, such as the parent of this one, are ignored.
    pub fn from_variables(
        variable: impl Fn(&str) -> Option<String>,
        process: u32,
    ) -> Result<Self, ServiceError> {
        let is_ours = |name| variable(name).is_none_or(|id| id.parse() == Ok(process));
        let address = variable("NOTIFY_SOCKET").filter(|address| !address.is_empty());
        let socket = match address {
            None => NotifySocket::default(),
            Some(address) => NotifySocket::open(&address)
                .map_err(|error| ServiceError { address, error: error.into() })?,
        };
        let micros = variable("WATCHDOG_USEC").and_then(|text| text.parse().ok());
        let watchdog = micros.filter(|micros| *micros > 0 && is_ours("WATCHDOG_PID"));
        let kept = match variable("LISTEN_PID").is_some() && is_ours("LISTEN_PID") {
            true => {
                let count = variable("LISTEN_FDS").and_then(|count| count.parse().ok());
                let names = variable("LISTEN_FDNAMES").unwrap_or_default();
                named(inherited(count.unwrap_or(0)), &names)
            }
            false => Vec::new(),
        };
        let watchdog = watchdog.map(Duration::from_micros);
        Ok(Self { socket: Arc::new(socket), watchdog, kept })
    }
}

/// Pairs descriptors with their names, which a manager lists in the same order.
fn named(all: Vec<Option<OwnedFd>>, names: &str) -> Vec<(String, OwnedFd)> {
    let names = names.split(':').chain(std::iter::repeat(""));
    names.zip(all).filter_map(|(name, fd)| Some((name.to_owned(), fd?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A manager by these variables, for the process 7.
    fn manager(variables: &[(&str, &str)]) -> Result<ServiceManager, ServiceError> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        ServiceManager::from_variables(variable, 7)
    }

    #[test]
    fn a_watchdog_is_for_the_process_that_it_names() {
        let watchdog = |variables: &[_]| manager(variables).unwrap().watchdog;
        let of = |id| [("WATCHDOG_USEC", "10000000"), ("WATCHDOG_PID", id)];
        assert_eq!(watchdog(&of("7")), Some(Duration::from_secs(10)));
        assert_eq!(watchdog(&of("8")), None);
        assert_eq!(watchdog(&of("7")[..1]), Some(Duration::from_secs(10)));
        assert_eq!(watchdog(&[("WATCHDOG_USEC", "0")]), None);
        assert_eq!(watchdog(&[("WATCHDOG_USEC", "soon")]), None);
        assert_eq!(watchdog(&[]), None);
    }

    #[test]
    fn an_invalid_address_is_refused_with_advice() {
        let error = manager(&[("NOTIFY_SOCKET", "vsock:2:1")]).expect_err("no such kind");
        let output = error.to_string();
        assert!(output.starts_with("NOTIFY_SOCKET is \"vsock:2:1\""), "{output}");
        assert!(
            output.ends_with("write the path of its socket, or @NAME, or unset it"),
            "{output}"
        );
        assert!(manager(&[("NOTIFY_SOCKET", "")]).is_ok());
    }

    #[test]
    fn descriptors_have_their_names_or_none() {
        let file = || Some(std::fs::File::open("/dev/null").expect("it is there").into());
        let all = named(vec![file(), None, file(), file()], "a:b:c");
        let names: Vec<_> = all.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a", "c", ""]);
        let others = [("LISTEN_PID", "8"), ("LISTEN_FDS", "3")];
        assert_eq!(manager(&others).unwrap().kept.len(), 0);
    }
}
