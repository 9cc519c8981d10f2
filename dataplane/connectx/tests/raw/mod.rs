//! The device by the kernel's commands, in a program with the library preloaded: one context, a
//! completion queue and a queue pair that takes doorbells.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

pub const PORT_ACTIVE: u8 = 4;

/// The wait for a completion: so often so long.
const WAITS_MAX: u32 = 10_000;
const WAIT: Duration = Duration::from_millis(1);

const GET_CONTEXT: u32 = 0;
const QUERY_PORT: u32 = 2;
const ALLOC_PD: u32 = 3;
const REG_MR: u32 = 9;
const CREATE_CQ: u32 = 18;
const CREATE_QP: u32 = 24;
const MODIFY_QP: u32 = 26;

const PAGE: usize = 4096;
/// Entries of the completion queue, and basic blocks of the send queue.
const ENTRIES: u32 = 16;

/// An open file of the device. Closing it closes the context.
#[derive(Debug)]
pub struct RawDevice {
    pub file: Option<File>,
}

/// A queue pair in INIT, with rings and records in pages of its own.
pub struct RawQp {
    pub qpn: u32,
    /// Completion queue, its record, send queue, its record.
    pages: &'static [[AtomicU64; PAGE / 8]; 4],
    doorbell: &'static AtomicU64,
}

impl RawDevice {
    pub fn open() -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open("/dev/infiniband/uverbs0")?;
        let device = Self { file: Some(file) };
        // The driver's part: bfregs, low-latency ones, and versions that are 0.
        let mut driver = [0_u32; 8];
        driver[..2].copy_from_slice(&[16, 4]);
        device.command(GET_CONTEXT, &driver, &mut [0; 20])?;
        Ok(device)
    }

    /// Writes a command of 32-bit words, and gets its answer if there is space for one.
    fn command(&self, number: u32, body: &[u32], answer: &mut [u32]) -> io::Result<()> {
        let address = (answer.as_mut_ptr() as u64).to_ne_bytes();
        let address = if answer.is_empty() { &[][..] } else { &address[..] };
        let in_words = (2 + address.len() / 4 + body.len()) as u32;
        let lengths = in_words | (answer.len() as u32) << 16;
        let mut bytes = [number.to_ne_bytes(), lengths.to_ne_bytes()].concat();
        bytes.extend(address);
        bytes.extend(body.iter().flat_map(|word| word.to_ne_bytes()));
        let written = self.file.as_ref().unwrap().write(&bytes)?;
        assert_eq!(written, bytes.len());
        Ok(())
    }

    pub fn port_state(&self) -> io::Result<u8> {
        let mut answer = [0; 10];
        self.command(QUERY_PORT, &[1, 0], &mut answer)?;
        // Byte 26.
        Ok((answer[6] >> 16) as u8)
    }

    /// Registers pages of their own, which are long enough to be shared with peers.
    pub fn region(&mut self) -> &'static AtomicU64 {
        const BYTES: usize = 1 << 18;
        let mut pd = [0; 2];
        self.command(ALLOC_PD, &[], &mut pd).unwrap();
        let pages = map(BYTES, -1);
        let [low, high] = [pages as u64 as u32, (pages as u64 >> 32) as u32];
        const LOCAL_WRITE: u32 = 1;
        let body = [low, high, BYTES as u32, 0, low, high, pd[0], LOCAL_WRITE];
        self.command(REG_MR, &body, &mut [0; 3]).unwrap();
        // SAFETY: the pages were mapped above, and stay.
        unsafe { &*pages.cast::<AtomicU64>() }
    }

    pub fn qp(&mut self) -> RawQp {
        let mut pd = [0; 2];
        self.command(ALLOC_PD, &[], &mut pd).unwrap();
        let pages = map(4 * PAGE, -1).cast::<[[AtomicU64; PAGE / 8]; 4]>();
        // SAFETY: the pages were mapped above, and stay.
        let pages = unsafe { &*pages };
        let address = |page: usize| {
            let address = pages[page].as_ptr() as u64;
            [address as u32, (address >> 32) as u32]
        };
        for entry in 0..ENTRIES as usize {
            // The opcode of an entry that none was written to.
            pages[0][entry * 8 + 7].store(u64::from_be(0xf0), Ordering::Relaxed);
        }
        let [[cq_low, cq_high], [cq_record_low, cq_record_high]] = [address(0), address(1)];
        let none = -1_i32 as u32;
        let body = [7, 0, ENTRIES - 1, 0, none, 0, cq_low, cq_high, cq_record_low, cq_record_high];
        let mut cq = [0; 4];
        self.command(CREATE_CQ, &[&body[..], &[64, 0]].concat(), &mut cq).unwrap();
        // Of the fixed part: the type is RC, in byte 41.
        let mut body = vec![8, 0, pd[0], cq[0], cq[0], 0, 0, 0, 0, 0, 0, 2 << 8];
        body.extend([address(2), address(3)].concat());
        body.extend([ENTRIES, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let mut qp = [0; 18];
        self.command(CREATE_QP, &body, &mut qp).unwrap();
        let mut change = [0_u32; 28];
        const STATE_PKEY_PORT_ACCESS: u32 = 1 | 1 << 4 | 1 << 5 | 1 << 3;
        (change[16], change[17]) = (qp[0], STATE_PKEY_PORT_ACCESS);
        // The state is INIT, the port 1.
        (change[24], change[26]) = (1, 1);
        self.command(MODIFY_QP, &change, &mut []).unwrap();
        let register = qp[8] as usize;
        let fd = self.file.as_ref().unwrap().as_raw_fd();
        let page = map_at(PAGE, fd, register / 4 * PAGE).cast::<u8>();
        // SAFETY: the page is the device's, and has the register at these bytes.
        let doorbell = unsafe { &*page.add(0x800 + register % 4 * 512).cast::<AtomicU64>() };
        RawQp { qpn: qp[1], pages, doorbell }
    }
}

fn map(bytes: usize, fd: i32) -> *mut libc::c_void {
    map_at(bytes, fd, 0)
}

fn map_at(bytes: usize, fd: i32, offset: usize) -> *mut libc::c_void {
    let flags = if fd < 0 { libc::MAP_PRIVATE | libc::MAP_ANONYMOUS } else { libc::MAP_SHARED };
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the kernel, or the device, picks addresses that nothing uses.
    let mapped = unsafe {
        libc::mmap(std::ptr::null_mut(), bytes, protection, flags, fd, offset as libc::off_t)
    };
    assert_ne!(mapped, libc::MAP_FAILED, "{}", io::Error::last_os_error());
    mapped
}

impl RawQp {
    /// Posts a WQE with an opcode that does not exist, and waits for its completion in error, by
    /// which the queue pair has failed.
    pub fn takes_a_doorbell(self) -> bool {
        let [cq, _, send, record] = self.pages;
        const OPCODE: u64 = 0x77;
        let control = (OPCODE << 32 | u64::from(self.qpn) << 8 | 1).to_be();
        send[0].store(control, Ordering::Relaxed);
        // SAFETY: the second word of the record is there, and accessed by atomic operations only.
        let count = unsafe { &*record.as_ptr().cast::<AtomicU32>().add(1) };
        count.store(1_u32.to_be(), Ordering::Release);
        self.doorbell.store(control, Ordering::Release);
        for _ in 0..WAITS_MAX {
            const REQUESTER_ERROR: u64 = 13;
            if u64::from_be(cq[7].load(Ordering::Acquire)) >> 4 & 0xf == REQUESTER_ERROR {
                return true;
            }
            std::thread::sleep(WAIT);
        }
        false
    }
}
