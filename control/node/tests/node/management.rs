//! Ports whose MADs go through the kernel (`pollux_node::port::umad`), with a kernel in memory.

use crate::fabric::{Manager, Running};
use crate::host::Hosts;
use pollux_ibverbs::management::{
    Agent, MadPeer, ManagementPort, ReceivedMad, Registration, UmadRetryPolicy,
};
use pollux_node::port::DevicePort;
use pollux_node::{Opened, open};
use pollux_verbs::VerbsError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The kernel's end of a port.
struct Kernel {
    descriptor: UnixStream,
    is_gone: Arc<AtomicBool>,
}

impl ManagementPort for Kernel {
    fn register(&mut self, registration: &Registration<'_>) -> Result<Agent, VerbsError> {
        Ok(Agent(registration.class.0.into()))
    }

    fn send(
        &mut self,
        _: Agent,
        _: &MadPeer,
        _: &[u8],
        _: Option<UmadRetryPolicy>,
    ) -> Result<(), VerbsError> {
        Ok(())
    }

    fn receive(&mut self, _: Duration) -> Result<Option<ReceivedMad<'_>>, VerbsError> {
        let advice = || "is the port still there?".into();
        match self.is_gone.load(Ordering::Relaxed) {
            true => Err(VerbsError::System { verb: "receive", errno: 5, advice: advice() }),
            false => Ok(None),
        }
    }

    fn descriptor(&self) -> Option<OwnedFd> {
        self.descriptor.as_fd().try_clone_to_owned().ok()
    }
}

/// A port of a fabric whose MADs go through a kernel; the other end of its descriptor, and whether
/// the kernel has lost it.
fn managed(fabric: &Running) -> (Opened, UnixStream, Arc<AtomicBool>) {
    let (descriptor, other) = UnixStream::pair().expect("the system has sockets");
    let is_gone = Arc::new(AtomicBool::new(false));
    let kernel = Kernel { descriptor, is_gone: Arc::clone(&is_gone) };
    let opened = open(&fabric.port(1)).expect("the port is free");
    (Opened { management: Some(Box::new(kernel)), ..opened }, other, is_gone)
}

#[test]
fn a_mad_from_the_kernel_wakes_a_sleeper() {
    let fabric = Running::start("a_mad_from_the_kernel", 1, Manager::Ours);
    let (opened, mut kernel, _) = managed(&fabric);
    let port = DevicePort::new(opened).expect("the classes are free");
    let descriptor = port.descriptors().next().expect("the kernel has one");
    let is_readable = || {
        let mut fds = [PollFd::new(&descriptor, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).expect("it is a socket") == 1
    };
    assert!(!is_readable());
    kernel.write_all(b"a MAD").expect("it is open");
    assert!(is_readable());
}

#[test]
fn an_interface_without_its_management_fails_with_a_reason() {
    let fabric = Running::start("an_interface_whose_management_is_gone", 1, Manager::Ours);
    let (opened, _kernel, is_gone) = managed(&fabric);
    let mut hosts = Hosts::opened(vec![(opened, "10.0.0.1/24")], "mode = 'rc'");
    let now = hosts.now();
    hosts.hosts[0].step(now);
    assert_eq!(hosts.hosts[0].failed(), None);
    is_gone.store(true, Ordering::Relaxed);
    hosts.hosts[0].step(now);
    let failed = hosts.hosts[0].failed().expect("it cannot work without").to_string();
    assert!(failed.ends_with("is the port still there?"), "{failed}");
}
