#!/usr/bin/env python3
# Usage: scripts/linux-peer/linux_peer.py run|shell|serve|cable|selftest [OPTION...]
"""Boot guests that run the real Linux IPoIB over a virtual HCA whose wire is a unix socket.

    with Guest(wire='/run/x.sock') as g:        # connects there, and again whenever it is cut off
        g.start_sm()
        g.ipoib('10.0.0.1/24')
        rc, output = g.run('ping -c1 10.0.0.2')

scripts/linux-peer/build must have been run.  Python 3.11, standard library only.
"""

import argparse
import atexit
import base64
import fcntl
import hashlib
import json
import os
import pathlib
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

ETHERTYPE = b'\x88\xb5'
QEMU = os.environ.get('LINUX_PEER_QEMU', 'qemu-system-x86_64')


def cache_dir():
    """Where scripts/linux-peer/build has put it."""
    top = pathlib.Path(__file__).resolve().parent.parent.parent
    target = os.environ.get('CARGO_TARGET_DIR') or top / 'target'
    return pathlib.Path(os.environ.get('LINUX_PEER_CACHE') or pathlib.Path(target, 'linux-peer'))


class Pcap:
    """IB packets as a pcap file of ERF records, which tshark decodes; LINKTYPE 247 it does not."""

    LINKTYPE_ERF, ERF_TYPE_INFINIBAND = 197, 21

    def __init__(self, path):
        self.lock, self.count = threading.Lock(), 0
        self.file = open(path, 'wb')
        self.file.write(struct.pack('<IHHiIII', 0xA1B2C3D4, 2, 4, 0, 0, 65535, self.LINKTYPE_ERF))

    def add(self, packet):
        """packet: LRH to VCRC"""
        now = time.time()
        erf = struct.pack('<Q', int(now * 2**32)) + struct.pack(
            '>BBHHH', self.ERF_TYPE_INFINIBAND, 4, 16 + len(packet), 0, len(packet)
        )
        n = len(erf) + len(packet)
        with self.lock:
            if not self.file.closed:
                self.file.write(
                    struct.pack('<IIII', int(now), int(now % 1 * 1e6), n, n) + erf + packet
                )
                self.count += 1

    def close(self):
        with self.lock:
            self.file.close()


def ib_packet(frame):
    """The IB packet in an Ethernet frame of the wire, or None."""
    if frame[12:14] != ETHERTYPE or len(frame) < 14 + 26:
        return None
    n = (int.from_bytes(frame[18:20], 'big') & 0x7FF) * 4 + 2
    return frame[14 : 14 + n]


def exactly(f, n):
    data = f.read(n)
    if len(data) < n:
        raise EOFError
    return data


class Cable:
    """Carries frames between two stream sockets ('PATH' is dialled, 'listen:PATH' is listened at).

    Whenever one end is lost, both are closed; they are opened again unless it is unplugged.
    pcap: a Pcap.
    tap(frame, from_a) may return the frame, another one, or None to lose it."""

    def __init__(self, a, b, pcap=None, tap=None):
        self.ends, self.pcap, self.tap = (a, b), pcap, tap
        self.stopping, self.connected, self.socks = threading.Event(), threading.Event(), []
        self.plugged = threading.Event()
        self.plugged.set()
        self.frames = [0, 0]
        self.listeners = {e: self._listen(e[7:]) for e in self.ends if e.startswith('listen:')}
        self.thread = threading.Thread(target=self._main, daemon=True)
        self.thread.start()

    @staticmethod
    def _listen(path):
        if os.path.exists(path):
            os.unlink(path)
        s = socket.socket(socket.AF_UNIX)
        s.bind(path)
        s.listen(1)
        s.settimeout(0.2)
        return s

    def _open(self, end):
        while not self.stopping.is_set():
            s = None
            try:
                if end in self.listeners:
                    s = self.listeners[end].accept()[0]
                else:
                    s = socket.socket(socket.AF_UNIX)
                    s.connect(end)
                s.settimeout(None)
                return s
            except OSError:
                if s:
                    s.close()
                self.stopping.wait(0.05)
        raise EOFError

    def _main(self):
        while not self.stopping.is_set():
            if not self.plugged.wait(0.2):
                continue
            try:
                self.socks = [self._open(self.ends[1])]  # the outer end first: it may take long
                self.socks.insert(0, self._open(self.ends[0]))
                self.connected.set()
                other = threading.Thread(target=self._pump, args=(1,), daemon=True)
                other.start()
                self._pump(0)
                other.join()
            except EOFError:
                pass
            self.connected.clear()
            for s in self.socks:
                s.close()
            self.socks = []

    def _pump(self, i):
        src, dst = self.socks[i], self.socks[1 - i]
        try:
            f = src.makefile('rb', 1 << 18)
            while True:
                frame = exactly(f, struct.unpack('>I', exactly(f, 4))[0])
                if self.tap and (frame := self.tap(frame, i == 0)) is None:
                    continue
                if self.pcap and (packet := ib_packet(frame)):
                    self.pcap.add(packet)
                dst.sendall(struct.pack('>I', len(frame)) + frame)
                self.frames[i] += 1
        except (OSError, EOFError, ValueError):
            for s in (src, dst):
                try:
                    s.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def plug(self, is_in):
        """Closes both ends, and keeps them closed, or opens them again."""
        if is_in:
            return self.plugged.set()
        self.plugged.clear()
        self._cut()

    def _cut(self):
        for s in self.socks:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def stop(self):
        self.stopping.set()
        self._cut()
        self.thread.join(10)
        for end, s in self.listeners.items():
            s.close()
            os.unlink(end[7:])


class GuestError(Exception):
    pass


class Guest:
    """One virtual machine with one IB port.

    wire     unix socket path of the wire; None: only guest.socket (below) exists
    listen   False: connect to wire and keep trying; True: QEMU itself listens there
    number   tells guests apart: NodeGUID 0x0200000000000000 + 0x100 * number
    params   parameters of vhca.ko, e.g. 'drop_rc=40 force_retry=7'; None: do not load it
    capture  pcap file for what passes (not with listen=True)
    snapshot restore a booted guest from the cache (made when missing) instead of booting
    """

    MACHINE = [
        '-M',
        'q35',
        '-accel',
        'tcg,thread=single',
        '-cpu',
        'max',
        '-smp',
        '1',
        '-nodefaults',
        '-no-reboot',
        '-display',
        'none',
        '-device',
        'vmgenid,guid=auto',
        '-append',
        'console=ttyS0,115200 loglevel=7 panic=-1 tsc=reliable mitigations=off random.trust_cpu=on',
    ]

    def __init__(
        self,
        wire=None,
        listen=False,
        number=1,
        params='',
        capture=None,
        snapshot=True,
        memory=256,
        cache=None,
    ):
        self.cache = pathlib.Path(cache) if cache else cache_dir()
        if not (self.cache / 'ready').exists():
            raise GuestError(f'{self.cache} holds no guest: run scripts/linux-peer/build')
        self.memory, self.number, self.seq, self.buf = memory, number, 0, b''
        self.proc = self.serial = self.qmp_file = self.cable = self.pcap = None
        self.dir = tempfile.mkdtemp(prefix='linux-peer-')
        atexit.register(self.close)
        try:
            #: QEMU's listening socket of the wire
            self.socket = (
                os.path.abspath(wire) if wire and listen else os.path.join(self.dir, 'wire')
            )
            state = self._snapshot() if snapshot else None
            self._start(state)
            if wire and not listen:
                self.pcap = Pcap(capture) if capture else None
                self.cable = Cable(self.socket, os.path.abspath(wire), self.pcap)
            elif capture:
                raise GuestError('capture needs a wire to connect to')
            if params is not None:
                self.load_hca(params)
        except BaseException:
            self.close()
            raise

    # --- life and death

    def _snapshot(self):
        """The path of the state file of a guest that has just booted."""
        version = subprocess.run([QEMU, '--version'], capture_output=True, check=True).stdout
        key = hashlib.sha256(
            repr((version, self.MACHINE, self.memory)).encode()
            + (self.cache / 'ready').read_bytes()
        )
        path = self.cache / f'snapshot-{key.hexdigest()[:16]}'
        if not path.exists():
            with open(self.cache / 'snapshot.lock', 'w') as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not path.exists():
                    with Guest(
                        params=None, snapshot=False, memory=self.memory, cache=self.cache
                    ) as g:
                        g.save(f'{path}.tmp')
                    os.rename(f'{path}.tmp', path)
        return path

    def _start(self, state):
        p = lambda name: os.path.join(self.dir, name)
        if os.path.exists(self.socket):
            os.unlink(self.socket)
        comma = lambda path: str(path).replace(',', ',,')
        cmd = [
            QEMU,
            *self.MACHINE,
            '-m',
            str(self.memory),
            '-kernel',
            str(self.cache / 'vmlinuz'),
            '-initrd',
            str(self.cache / 'initrd.gz'),
            '-serial',
            f"file:{p('console.log')}",
            '-serial',
            f"unix:{comma(p('serial'))},server=on,wait=off",
            '-qmp',
            f"unix:{comma(p('qmp'))},server=on,wait=off",
            '-netdev',
            f'stream,id=wire,server=on,addr.type=unix,addr.path={comma(self.socket)}',
            '-device',
            'virtio-net-pci,id=nic,netdev=wire,romfile=',
        ]
        if state:
            cmd += ['-incoming', f'exec:cat {shlex.quote(str(state))}']
        # the shell ends QEMU when this process closes the pipe, or is gone
        with open(p('qemu.log'), 'w') as log:
            self.proc = subprocess.Popen(
                ['sh', '-c', '"$@" & read -r _; kill -9 $!; wait; rm -rf "$0"', self.dir, *cmd],
                stdin=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self.serial, qmp = self._dial(p('serial')), self._dial(p('qmp'))
        self.qmp_file = qmp.makefile('rw')
        self.qmp_file.readline()
        self.qmp('qmp_capabilities')
        if state:
            while self.qmp('query-status')['status'] == 'inmigrate':
                time.sleep(0.01)
            self.qmp('cont')
        else:
            self._until(b'\x1eready\n', 120)

    def _dial(self, path):
        end = time.monotonic() + 20
        while time.monotonic() < end:
            s = socket.socket(socket.AF_UNIX)
            try:
                s.connect(path)
                s.settimeout(20)
                return s
            except OSError:
                s.close()
                time.sleep(0.01)
        raise GuestError('QEMU did not start: ' + self.log('qemu.log'))

    def save(self, path):
        """Write the state of the guest to a file and stop it."""
        self.qmp('stop')
        self.qmp('migrate', uri=f'exec:cat > {shlex.quote(str(path))}')
        while (status := self.qmp('query-migrate').get('status')) != 'completed':
            if status in ('failed', 'canceled'):
                raise GuestError(f'snapshot {status}')
            time.sleep(0.02)

    def close(self):
        if self.proc:
            self.proc.stdin.close()
            self.proc.wait()
            self.proc = None
        if self.cable:
            self.cable.stop()
        if self.pcap:
            self.pcap.close()
        for f in (self.serial, self.qmp_file):
            if f:
                f.close()
        shutil.rmtree(self.dir, ignore_errors=True)
        if os.path.exists(self.socket):
            os.unlink(self.socket)
        atexit.unregister(self.close)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # --- talking to it

    def log(self, name='console.log'):
        """What the kernel printed (or QEMU: 'qemu.log')."""
        return pathlib.Path(self.dir, name).read_text(errors='replace')

    def qmp(self, command, **arguments):
        self.qmp_file.write(json.dumps({'execute': command, 'arguments': arguments}) + '\n')
        self.qmp_file.flush()
        while line := self.qmp_file.readline():
            reply = json.loads(line)
            if 'error' in reply:
                raise GuestError(f"{command}: {reply['error']['desc']}")
            if 'return' in reply:
                return reply['return']
        raise GuestError('QEMU is gone: ' + self.log('qemu.log'))

    def _until(self, pattern, seconds):
        end = time.monotonic() + seconds
        start = 0
        while (at := self.buf.find(pattern, start)) < 0:
            start = max(0, len(self.buf) - len(pattern))
            self.serial.settimeout(max(0.01, end - time.monotonic()))
            try:
                data = self.serial.recv(65536)
            except TimeoutError:
                raise GuestError(
                    f'guest does not answer: {self.buf[-300:]!r}\n{self.log()[-2000:]}'
                ) from None
            if not data:
                raise GuestError('QEMU is gone: ' + self.log('qemu.log') + self.log()[-2000:])
            self.buf += data
        head, self.buf = self.buf[:at], self.buf[at + len(pattern) :]
        return head

    def run_bytes(self, commands, timeout=60):
        """Run shell commands in the guest: (exit status, output).  137: killed by the timeout."""
        self.seq += 1
        self.serial.settimeout(20)
        self.serial.sendall(
            b'%d %d %s\n' % (self.seq, timeout, base64.b64encode(commands.encode()))
        )
        output = self._until(b'\n\x1e%d ' % self.seq, timeout + 20)
        return int(self._until(b'\n', 20)), output

    def run(self, commands, timeout=60):
        rc, output = self.run_bytes(commands, timeout)
        return rc, output.decode(errors='replace')

    def check(self, commands, timeout=60):
        """Like run(), but an exit status other than 0 raises GuestError; returns the output."""
        rc, output = self.run(commands, timeout)
        if rc:
            raise GuestError(f'exit status {rc}: {commands}\n{output}')
        return output

    def get(self, path):
        """The contents of a file of the guest."""
        rc, output = self.run_bytes(f'base64 {shlex.quote(path)}', 300)
        if rc:
            raise GuestError(output.decode(errors='replace'))
        return base64.b64decode(output)

    def link(self, up):
        """Plug or pull the cable, at both of its ends if the guest has made it."""
        if self.cable:
            self.cable.plug(up)
        self.qmp('set_link', name='nic', up=up)

    # --- InfiniBand

    def load_hca(self, params=''):
        self.check(f'hca_up guid_base={0x0200000000000000 + 0x100 * self.number:#x} {params}')

    def unload_hca(self):
        self.check('hca_down')

    def start_sm(self, options=''):
        """Run OpenSM and wait until it has brought the own port up."""
        self.check(f'sm_start {options}; wait_active')

    def ipoib(self, address, mode='datagram', interface='ib0'):
        """Configure an IPoIB interface and wait for its carrier."""
        self.check(f'ipoib_up {address} {mode} {interface}')


def serve(guest, timeout):
    """Answer {"run": COMMANDS, "timeout": SECONDS}, {"link": UP} and {"log": true}, line by line.

    The answer is {"status": NUMBER, "output": TEXT}; the first one says that the guest runs."""

    def answer(status, output=''):
        print(json.dumps({'status': status, 'output': output}), flush=True)

    answer(0, 'ready')
    for line in sys.stdin:
        request = json.loads(line)
        if 'link' in request:
            guest.link(request['link'])
            answer(0)
        elif 'log' in request:
            answer(0, guest.log())
        else:
            answer(*guest.run(request['run'], request.get('timeout', timeout)))
    return 0


def main():
    def interrupted(*_):
        sys.exit(130)

    signal.signal(signal.SIGTERM, interrupted)
    top = argparse.ArgumentParser(description='a real Linux IPoIB peer in a QEMU guest')
    sub = top.add_subparsers(dest='command', required=True)
    for name, text in (
        ('run', 'run commands in a fresh guest'),
        ('shell', 'run commands read from standard input'),
        ('serve', 'the same for programs: a JSON object a line in, one out'),
    ):
        p = sub.add_parser(name, help=text)
        p.add_argument('--wire', required=True, metavar='PATH', help='unix socket of the wire')
        p.add_argument(
            '--listen', action='store_true', help='listen at PATH instead of connecting to it'
        )
        p.add_argument('--number', type=int, default=1, help='guest number, makes its GUID')
        p.add_argument('--params', default='', help='parameters of vhca.ko')
        p.add_argument('--sm', action='store_true', help='run OpenSM in the guest')
        p.add_argument('--ip', metavar='ADDRESS/LEN', help='bring ib0 up with this address')
        p.add_argument('--mode', default='datagram', choices=('datagram', 'connected'))
        p.add_argument('--capture', metavar='PCAP', help='write what passes the wire to a file')
        p.add_argument(
            '--no-snapshot', action='store_true', help='boot instead of restoring a snapshot'
        )
        p.add_argument('--timeout', type=int, default=60, help='seconds for each command')
        if name == 'run':
            p.add_argument('commands', nargs='+')
    p = sub.add_parser('cable', help='join two listening sockets')
    p.add_argument('ends', nargs=2, metavar='[listen:]PATH')
    p.add_argument('--capture', metavar='PCAP')
    p = sub.add_parser('selftest', help='two guests and an OpenSM against each other')
    p.add_argument('--keep', metavar='DIR', help='leave the captures and logs there')
    args = top.parse_args()

    if args.command == 'selftest':
        import selftest

        return selftest.main(args.keep)
    if args.command == 'cable':
        pcap = Pcap(args.capture) if args.capture else None
        cable = Cable(*args.ends, pcap)
        try:
            while True:
                time.sleep(1)
        finally:
            cable.stop()
            if pcap:
                pcap.close()
    with Guest(
        args.wire, args.listen, args.number, args.params, args.capture, not args.no_snapshot
    ) as g:
        if args.sm:
            g.start_sm()
        if args.ip:
            g.ipoib(args.ip, args.mode)
        rc = 0
        if args.command == 'run':
            for commands in args.commands:
                rc, output = g.run(commands, args.timeout)
                print(output.rstrip('\n'), end='\n' if output.strip('\n') else '', flush=True)
                if rc:
                    break
            return rc
        if args.command == 'serve':
            return serve(g, args.timeout)
        while True:
            try:
                line = input('guest# ' if sys.stdin.isatty() else '')
            except EOFError:
                return rc
            if line.strip() == 'exit':
                return rc
            rc, output = g.run(line, args.timeout)
            print(
                *filter(None, (output.rstrip('\n'), rc and f'[exit status {rc}]')),
                sep='\n',
                flush=True,
            )


if __name__ == '__main__':
    try:
        sys.exit(main())
    except GuestError as e:
        sys.exit(f'linux_peer.py: {e}')
    except KeyboardInterrupt:
        sys.exit(130)
