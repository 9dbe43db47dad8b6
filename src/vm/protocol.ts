/**
 * The agent's wire protocol, host side. Keep in sync with vm-assets/agent/protocol.h: a test compares
 * the constants. Everything is little-endian. A frame is a header of 12 bytes (u32 payload length,
 * u16 type, u16 zero, u32 session) and the payload. Both sides close the stream on a frame that is too
 * long, of an unknown type, or malformed. What an INDEX session sends is described in domain/index-stream.ts.
 */
export const PROTOCOL_VERSION = 2;
export const FRAME_HEADER_BYTES = 12;
/** Longest payload in `bytes`: large enough to amortise the header, small enough for fixed buffers. */
export const FRAME_PAYLOAD_BYTES_MAX = 65_536;
/** Sessions that can be alive at once in one guest. */
export const SESSIONS_COUNT_MAX = 16;
/** Longest EXEC specification in `bytes`: ARG_MAX of the guest plus room for lengths. */
export const EXEC_SPEC_BYTES_MAX = 4_194_304;
/** Credit that a receiver of a byte stream grants at the start of a session, in `bytes`. */
export const WINDOW_BYTES_INITIAL = 262_144;
/** Entropy in a SYNC frame, in `bytes`. */
export const SYNC_ENTROPY_BYTES = 32;
/** Layers in a MOUNT frame. */
export const LAYERS_COUNT_MAX = 128;

/** Frame types, host to agent. */
export const HostFrame = {
  /** u32 version, u32 zero, u64 nonce, u64 realtime ns, 32 bytes of entropy -> SYNCED. Sets clock, reseeds RNG. */
  sync: 1,
  /**
   * u16 layer count, u16 flags -> DONE, ERROR. Disks are found by serial L00.. L127, S. Flags: none, the layers alone;
   * 1, the scratch and the overlay of all as the root of commands; 2, the scratch without an overlay, for MERGE.
   */
  mount: 2,
  /** u32 mode, u32 zero, u64 size in bytes, path -> DONE or ERROR after `size` bytes of PUT_DATA. */
  putOpen: 3,
  putData: 4,
  /** u32 spec bytes, u32 flags (1: stdin follows), u64 timeout ms; then EXEC_SPEC until complete -> STARTED, OUTPUT*, EXIT, or ERROR. */
  execOpen: 5,
  execSpec: 6,
  /** bytes for standard input; an empty payload is end of input. Needs credit. */
  stdin: 7,
  /** u32 signal number, sent to the command. */
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
  /** see ExitFlag: u32 flags, u32 exit code (128+n for signal n), u64 cpu µs, u64 peak bytes, u64 wall µs. Ends the session. */
  exit: 135,
  /** u32 stream, u32 bytes: the agent takes that many more bytes of stdin. */
  window: 136,
  /** text for the log. */
  log: 137,
} as const;

export const Stream = { stdin: 0, stdout: 1, stderr: 2 } as const;
export const MountFlag = { scratch: 1, bare: 2 } as const;
export const ExecFlag = { stdin: 1 } as const;
export const ExitFlag = { timedOut: 1, oomKilled: 2 } as const;
/** Disk number of the scratch in an INDEX frame. */
export const INDEX_DISK_SCRATCH = 0xffff;
