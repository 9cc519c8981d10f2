//! What an interface makes of a device that does not do all that it should.

use crate::device::{Illness, ailing};
use crate::fabric::{Manager, Running};
use crate::host::Hosts;
use pollux_verbs::{AsyncEvent, VerbsError};

#[test]
fn an_interface_whose_device_loses_something_fails_and_says_what() {
    let fabric = Running::start("an_interface_whose_device_loses", 1, Manager::Ours);
    let losses: [(fn(&Illness) -> AsyncEvent, &str); 4] = [
        (|_| AsyncEvent::DeviceFatal, "adapter"),
        (|it| AsyncEvent::CqError(it.cqs[0]), "completion queue"),
        (|it| AsyncEvent::CqError(it.cqs[1]), "completion queue"),
        (|it| AsyncEvent::SrqError(it.srqs[0]), "shared receive queue"),
    ];
    for (loss, lost) in losses {
        let (opened, illness) = ailing(&fabric.port(1));
        let mut hosts = Hosts::opened(vec![(opened, "10.0.0.1/24")], "mode = 'rc'");
        hosts.come_up();
        let mut illness = illness.lock().expect("no test has panicked");
        let event = loss(&illness);
        illness.events.push_back(event);
        drop(illness);
        let now = hosts.now();
        hosts.hosts[0].step(now);
        let failed = hosts.hosts[0].failed();
        assert!(
            matches!(failed, Some(VerbsError::Lost { what, .. }) if *what == lost),
            "{event:?}: {failed:?}"
        );
    }
}
