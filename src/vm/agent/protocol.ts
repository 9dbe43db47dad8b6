/**
 * The agent's wire protocol, host side. Keep in sync with vm-assets/agent/protocol.h: a test compares
 * the constants. Everything is little-endian. A frame is a header of 12 bytes (u32 payload length,
 * u16 type, u16 zero, u32 session) and the payload. Both sides close the stream on a frame that is too
 * long, of an unknown type, or malformed. What an INDEX session sends is described in domain/index-stream.ts.
 *
 * Session 0 is the stream itself. The host numbers its sessions from 1 on; those that the guest opens have
 * SESSION_GUEST_BIT set. No id is used twice. Frames for a session that is over are dropped by the agent:
 * they crossed its last frame on the way.
 *
 * The agent answers ERROR with ENOSYS where it cannot do what a frame asks for: NETWORK.
 */
export const PROTOCOL_VERSION = 3;
export const FRAME_HEADER_BYTES = 12;
/** Longest payload in `bytes`: large enough to amortise the header, small enough for fixed buffers. */
export const FRAME_PAYLOAD_BYTES_MAX = 65_536;
/** Sessions of EXEC that can be alive at once in one guest. */
export const PROCESSES_COUNT_MAX = 64;
/** Sessions of all other requests that take more than one answer or more than one frame. */
export const TASKS_COUNT_MAX = 16;
/** Connections, whoever opened them. */
export const CONNECTIONS_COUNT_MAX = 256;
/** Set in the ids of the sessions that the guest opens. */
export const SESSION_GUEST_BIT = 0x8000_0000;
/** Longest EXEC specification in `bytes`: ARG_MAX of the guest plus room for lengths. */
export const EXEC_SPEC_BYTES_MAX = 4_194_304;
/** Payload of EXIT in `bytes`. */
export const EXIT_BYTES = 112;
/** Credit that the host grants for each output stream at the start of a session, in `bytes`. */
export const WINDOW_BYTES_INITIAL = 262_144;
/** Credit at the start for standard input, and for each direction of a connection, in `bytes`. */
export const INPUT_WINDOW_BYTES_INITIAL = 65_536;
/** Most credit that there is for such a stream at a time, in `bytes`: the agent grants more to a reader that keeps up. */
export const INPUT_WINDOW_BYTES_MAX = 262_144;
/** Entropy in a SYNC frame, in `bytes`. */
export const SYNC_ENTROPY_BYTES = 32;
/** Layers in a MOUNT frame. */
export const LAYERS_COUNT_MAX = 128;
/** Longest name in NET_OPEN and RESOLVE, in `bytes`. */
export const NAME_BYTES_MAX = 253;
/** Longest time in a QUIESCE frame, in `ms`. */
export const QUIESCE_MS_MAX = 60_000;

/** Frame types, host to agent. */
export const HostFrame = {
  /** u32 version, u32 zero, u64 nonce, u64 realtime ns, 32 bytes of entropy -> SYNCED. Sets clock, reseeds RNG, ends HOLD. */
  sync: 1,
  /**
   * u16 layer count, u16 flags -> DONE, ERROR. Disks are found by serial L00.. L127, S. Flags: none, the layers alone;
   * 1, the scratch and the overlay of all as the root of commands; 2, the scratch without an overlay, for MERGE.
   */
  mount: 2,
  /** u32 mode, u32 uid, u32 gid, u32 zero, u64 size in bytes, path -> DONE or ERROR after `size` bytes of PUT_DATA. */
  putOpen: 3,
  putData: 4,
  /**
   * u32 spec bytes, u32 flags (ExecFlag), u64 timeout ms, u32 beside, u32 uid, u32 gid, u16 rows, u16 columns; then
   * EXEC_SPEC until complete -> STARTED, OUTPUT*, EXIT, or ERROR. `beside`: the session of a running process, or 0.
   * The command then joins its pid, mount, IPC, UTS and network namespaces, keeps a cgroup of its own, may have no
   * time limit (0), and ends with it at the latest; hostname in the specification is not used. Rows and columns are
   * of the terminal, and 0 where there is none; a terminal has one stream of output, standard output.
   */
  execOpen: 5,
  execSpec: 6,
  /** bytes for standard input; an empty payload is end of input. Needs credit. At a terminal its end-of-file character (^D) stands for the end. */
  stdin: 7,
  /** u32 signal number, u32 flags (1: to the command's process group, else to the command). */
  signal: 8,
  /** u32 stream, u32 bytes: the host takes that many more bytes of the stream. */
  window: 9,
  /** no payload: ends what the command left, unmounts the overlay if there is one, trims, remounts the scratch read-only -> DONE (u64 bytes trimmed). */
  freeze: 10,
  /** u16 disk (0..127 layer, 0xffff scratch): walks /upper of the disk -> OUTPUT (stream 1)*, DONE (u64 entries), or ERROR. */
  index: 11,
  /** no payload: makes of all layers the one in the scratch that can stand in for them on any others -> DONE (u64 entries), ERROR. */
  merge: 12,
  /** no payload: after FREEZE, or a MOUNT of layers alone: unmounts all, forgets the disks -> DONE, ERROR. The machine can MOUNT again. */
  release: 13,
  /** session 0, u32 flags (NetworkFlag) -> DONE, ERROR. Off until then: the agent opens no connection and asks for no name. */
  network: 14,
  /** no payload: the host is connected to what NET_OPEN named. NET_DATA may follow at once. */
  netAccept: 15,
  /** u32 reason (Refusal): ends the session that NET_OPEN began. */
  netRefuse: 16,
  /** bytes of a connection, at least one. Needs credit. */
  netData: 17,
  /** no payload: no more NET_DATA. Once both sides have said so, and the guest's program has taken everything -> DONE. */
  netEnd: 18,
  /** no payload: ends the connection at once. The agent answers NET_RESET, unless the session is over for it. */
  netReset: 19,
  /** session = the number in RESOLVE, u32 response code of DNS: 0 the name may be used, 3 it does not exist. */
  resolved: 20,
  /** u16 port, u16 zero: connect to 127.0.0.1:port of the guest -> NET_OPENED, NET_REFUSED, or ERROR. */
  netDial: 21,
  /**
   * no payload -> DONE, ERROR. From its DONE on nothing flows in either direction until the SYNC that ends it: a copy of
   * the machine then has a stream that stands between two frames. ERROR while requests other than running processes
   * and open connections are under way.
   */
  hold: 22,
  /** u16 rows, u16 columns: the new size of a process' terminal. */
  resize: 23,
  /** no payload: writes out the scratch, while commands run -> DONE, ERROR. */
  flush: 24,
  /**
   * u32 ms (1 to QUIESCE_MS_MAX): stops every write to the scratch, while commands run -> QUIESCED once none is under way,
   * then DONE (u64 ns that it stood still) after a THAW. ERROR instead when it cannot be, and when it ended otherwise, so
   * that a copy taken meanwhile is worth nothing: ETIMEDOUT, the time was up; ECANCELED, a process was over its time
   * limit, which could not die in the middle of a write; EINVAL, root in the guest thawed it. Files cannot be put meanwhile.
   */
  quiesce: 25,
  /** no payload: lets the writes that QUIESCE stopped go on. */
  thaw: 26,
} as const;

/** Frame types, agent to host. */
export const AgentFrame = {
  /** u32 version, u32 zero, text: kernel release. Session 0, first on every connection; a port has one, after boot. */
  hello: 129,
  /** u64 nonce of the SYNC. */
  synced: 130,
  /** u64 value, meaning by request. */
  done: 131,
  /** u32 errno, u32 zero, text that names the step. Ends the session. */
  error: 132,
  /** u32 pid of the command in its namespace. */
  started: 133,
  /** u32 stream, bytes. */
  output: 134,
  /**
   * u32 flags (ExitFlag), u32 exit code (128+n for signal n), u64 cpu µs and u64 peak bytes of the cgroup, u64 wall µs,
   * u32 wait status as wait(2) gives it, u32 zero; then u64 each, of the command and the children that it waited for:
   * user µs, system µs, largest resident set in KiB, minor and major faults, blocks in and out, voluntary and
   * involuntary context switches. Ends the session.
   */
  exit: 135,
  /** u32 stream (0 standard input, 3 a connection), u32 bytes: the agent takes that many more bytes. */
  window: 136,
  /** text for the log. */
  log: 137,
  /** u16 port, u8 AddressKind, u8 zero, then the name in lower case without its final dot, or 4 or 16 bytes -> NET_ACCEPT, NET_REFUSE. */
  netOpen: 138,
  netData: 139,
  netEnd: 140,
  /** no payload: the connection is over; what crosses it is dropped. */
  netReset: 141,
  /** session = number of the query, u16 type of DNS, name -> RESOLVED. */
  resolve: 142,
  /** no payload: the connection that NET_DIAL asked for is there. */
  netOpened: 143,
  /** u32 reason (Refusal): ends the session that NET_DIAL began. */
  netRefused: 144,
  /** no payload: nothing of the scratch changes from here to the end of the session. */
  quiesced: 145,
} as const;

export const Stream = { stdin: 0, stdout: 1, stderr: 2, data: 3 } as const;
export const MountFlag = { scratch: 1, bare: 2 } as const;
/** stdin: bytes for standard input follow. terminal: a terminal is all three streams, and standard input follows. */
export const ExecFlag = { stdin: 1, terminal: 2 } as const;
export const SignalFlag = { group: 1 } as const;
export const ExitFlag = { timedOut: 1, oomKilled: 2 } as const;
/** on; and whether names have IPv6 addresses, too. */
export const NetworkFlag = { on: 1, ipv6: 2 } as const;
export const AddressKind = { name: 0, ipv4: 4, ipv6: 6 } as const;
/** Why there is no connection. */
export const Refusal = {
  denied: 1,
  refused: 2,
  unreachable: 3,
  timedOut: 4,
  nameGone: 5,
  limited: 6,
  noNetwork: 7,
} as const;
/** Disk number of the scratch in an INDEX frame. */
export const INDEX_DISK_SCRATCH = 0xffff;
