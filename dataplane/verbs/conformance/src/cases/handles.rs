//! Handles (contract: `memory`): valid until the object is destroyed, which fails while the object
//! is in use.

use super::prelude::*;

pub const CASES: &[Case] = &[
    Case::new("pd-after-its-end", "contract: NoSuch", &[], pd_after_its_end),
    Case::new("region-after-its-end", "contract: NoSuch", &[], region_after_its_end),
    Case::new("window-after-its-end", "contract: NoSuch", &[Need::Windows], window_after_its_end),
    Case::new("cq-after-its-end", "contract: NoSuch", &[], cq_after_its_end),
    Case::new("srq-after-its-end", "contract: NoSuch", &[], srq_after_its_end),
    Case::new("qp-after-its-end", "contract: NoSuch", &[], qp_after_its_end),
    Case::new("ah-after-its-end", "contract: NoSuch", &[], ah_after_its_end),
    Case::new("handles-are-not-reused-at-once", "contract: memory", &[], not_reused_at_once),
    Case::new("pd-with-region", "IBA 11.2.2.3", &[], |cx| pd_with(cx, Made::Region)),
    Case::new("pd-with-window", "IBA 11.2.2.3", &[Need::Windows], |cx| pd_with(cx, Made::Window)),
    Case::new("pd-with-srq", "IBA 11.2.2.3", &[], |cx| pd_with(cx, Made::Srq)),
    Case::new("pd-with-qp", "IBA 11.2.2.3", &[], pd_with_qp),
    Case::new("pd-with-ah", "IBA 11.2.2.3", &[], |cx| pd_with(cx, Made::Ah)),
    Case::new("cq-with-qp", "IBA 11.2.8.4", &[], cq_with_qp),
    Case::new("srq-with-qp", "IBA 11.2.3.4", &[], srq_with_qp),
    Case::new("everything-ends-in-order", "IBA 11.2", &[], everything_ends_in_order),
    Case::new("srq-of-another-pd", "IBA 10.2.3", &[], srq_of_another_pd),
];

fn pd_after_its_end(cx: &mut Context<'_>) -> Result<(), Stop> {
    let place = cx.place(Side::A)?;
    let memory = cx.buffer(&place, 64, Access::NONE)?.memory;
    let pd = cx.device(Side::A).create_pd()?;
    let path = cx.path(Side::A, Side::B)?;
    let init = cx.qp_init(&Place { pd, ..place }, &PairSetup::RC);
    let device = cx.device(Side::A);
    device.destroy_pd(pd)?;
    no_such("a region", device.register(pd, &memory, Access::NONE))?;
    no_such("a shared receive queue", device.create_srq(pd, 4, 1))?;
    no_such("a queue pair", device.create_qp(&init))?;
    no_such("an address handle", device.create_ah(pd, &path))?;
    no_such("its end", device.destroy_pd(pd))
}

fn region_after_its_end(cx: &mut Context<'_>) -> Result<(), Stop> {
    let place = cx.place(Side::A)?;
    let region = cx.buffer(&place, 64, Access::NONE)?.region;
    cx.device(Side::A).deregister(region.lkey)?;
    no_such("its end", cx.device(Side::A).deregister(region.lkey))?;
    no_such("the end of an unknown one", cx.device(Side::A).deregister(LKey(!region.lkey.0)))
}

fn window_after_its_end(cx: &mut Context<'_>) -> Result<(), Stop> {
    let place = cx.place(Side::A)?;
    let window = cx.device(Side::A).create_window(place.pd)?;
    cx.device(Side::A).destroy_window(window.rkey)?;
    no_such("its end", cx.device(Side::A).destroy_window(window.rkey))
}

fn cq_after_its_end(cx: &mut Context<'_>) -> Result<(), Stop> {
    let place = cx.place(Side::A)?;
    let cq = cx.device(Side::A).create_cq(4)?;
    let init = cx.qp_init(&Place { send_cq: cq, ..place }, &PairSetup::RC);
    let device = cx.device(Side::A);
    device.destroy_cq(cq)?;
    no_such("polling it", device.poll(cq, &mut [Completion::NOTHING]))?;
    no_such("a queue pair", device.create_qp(&init))?;
    no_such("its end", device.destroy_cq(cq))
}

fn srq_after_its_end(cx: &mut Context<'_>) -> Result<(), Stop> {
    let place = cx.place(Side::A)?;
    let srq = cx.device(Side::A).create_srq(place.pd, 4, 1)?;
    let init = cx.qp_init(&Place { srq: Some(srq), ..place }, &PairSetup::RC);
    let device = cx.device(Side::A);
    device.destroy_srq(srq)?;
    no_such("a queue pair", device.create_qp(&init))?;
    no_such("its limit", device.set_srq_limit(srq, 1))?;
    no_such("its end", device.destroy_srq(srq))
}

fn qp_after_its_end(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, _) = cx.connected(QpType::Rc)?;
    let device = cx.device(Side::A);
    device.destroy_qp(a.qp)?;
    no_such("its number", device.qpn(a.qp))?;
    no_such("its state", device.query_qp(a.qp))?;
    let to_err = QpAttributes { state: Some(QpState::Err), ..QpAttributes::default() };
    no_such("a change", device.modify_qp(a.qp, &to_err))?;
    no_such("its end", device.destroy_qp(a.qp))
}

fn ah_after_its_end(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Ud)?;
    let ah = cx.destination(&a, &b)?.ah;
    cx.device(Side::A).destroy_ah(ah)?;
    no_such("its end", cx.device(Side::A).destroy_ah(ah))
}

fn not_reused_at_once(cx: &mut Context<'_>) -> Result<(), Stop> {
    // A stale handle must not reach a later object.
    let place = cx.place(Side::A)?;
    let old = cx.create(&place, &PairSetup::RC)?;
    cx.device(Side::A).destroy_qp(old.qp)?;
    let new = cx.create(&place, &PairSetup::RC)?;
    equal("the handle of one that has ended", old.qp == new.qp, false)?;
    no_such("the old one's number", cx.device(Side::A).qpn(old.qp))
}

/// Objects that are created in a protection domain.
#[derive(Clone, Copy)]
enum Made {
    Region,
    Window,
    Srq,
    Ah,
}

/// A protection domain cannot be destroyed while it has objects.
fn pd_with(cx: &mut Context<'_>, made: Made) -> Result<(), Stop> {
    let place = cx.place(Side::A)?;
    let pd = place.pd;
    let in_use = |cx: &mut Context<'_>| {
        busy("the end of a domain in use", cx.device(Side::A).destroy_pd(pd))
    };
    match made {
        Made::Region => {
            let region = cx.buffer(&place, 64, Access::NONE)?.region;
            in_use(cx)?;
            cx.device(Side::A).deregister(region.lkey)?;
        }
        Made::Window => {
            let window = cx.device(Side::A).create_window(pd)?;
            in_use(cx)?;
            cx.device(Side::A).destroy_window(window.rkey)?;
        }
        Made::Srq => {
            let srq = cx.device(Side::A).create_srq(pd, 4, 1)?;
            in_use(cx)?;
            cx.device(Side::A).destroy_srq(srq)?;
        }
        Made::Ah => {
            let path = cx.path(Side::A, Side::B)?;
            let ah = cx.device(Side::A).create_ah(pd, &path)?;
            in_use(cx)?;
            cx.device(Side::A).destroy_ah(ah)?;
        }
    }
    Ok(cx.device(Side::A).destroy_pd(pd)?)
}

fn pd_with_qp(cx: &mut Context<'_>) -> Result<(), Stop> {
    let place = cx.place(Side::A)?;
    let end = cx.create(&place, &PairSetup::RC)?;
    busy("the end of a domain in use", cx.device(Side::A).destroy_pd(place.pd))?;
    cx.device(Side::A).destroy_qp(end.qp)?;
    Ok(cx.device(Side::A).destroy_pd(place.pd)?)
}

fn cq_with_qp(cx: &mut Context<'_>) -> Result<(), Stop> {
    let place = cx.place(Side::A)?;
    let end = cx.create(&place, &PairSetup::RC)?;
    for cq in [place.send_cq, place.recv_cq] {
        busy("the end of a queue in use", cx.device(Side::A).destroy_cq(cq))?;
    }
    cx.device(Side::A).destroy_qp(end.qp)?;
    for cq in [place.send_cq, place.recv_cq] {
        cx.leave_cq(Side::A, cq);
        cx.device(Side::A).destroy_cq(cq)?;
    }
    Ok(())
}

fn srq_with_qp(cx: &mut Context<'_>) -> Result<(), Stop> {
    let place = cx.place_with_srq(Side::A, 4)?;
    let Some(srq) = place.srq else { return skip("no shared receive queue") };
    let end = cx.create(&place, &PairSetup::RC)?;
    busy("the end of a queue in use", cx.device(Side::A).destroy_srq(srq))?;
    cx.device(Side::A).destroy_qp(end.qp)?;
    Ok(cx.device(Side::A).destroy_srq(srq)?)
}

fn everything_ends_in_order(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    cx.exchange(&a, &b, 5000)?;
    let extra = cx.sink(&a, 64)?;
    cx.device(Side::A).destroy_qp(a.qp)?;
    for cq in [a.place.send_cq, a.place.recv_cq] {
        cx.leave_cq(Side::A, cq);
        cx.device(Side::A).destroy_cq(cq)?;
    }
    cx.device(Side::A).deregister(extra.region.lkey)?;
    // The exchange has registered a region in the domain.
    busy("a domain with a region", cx.device(Side::A).destroy_pd(a.place.pd))
}

fn srq_of_another_pd(cx: &mut Context<'_>) -> Result<(), Stop> {
    let place = cx.place(Side::A)?;
    let other = cx.device(Side::A).create_pd()?;
    let srq = cx.device(Side::A).create_srq(other, 4, 1)?;
    let end = cx.create(&Place { srq: Some(srq), ..place }, &PairSetup::RC)?;
    // IBA permits different domains; receives are checked against the domain of the shared queue.
    cx.device(Side::A).destroy_qp(end.qp)?;
    Ok(cx.device(Side::A).destroy_srq(srq)?)
}
