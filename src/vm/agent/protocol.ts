/**
 * The agent's wire protocol, host side. vm-assets/agent/protocol.h is its twin; a test compares the constants. All
 * numbers are little-endian. A frame is a header of 12 bytes (u32 payload length, u16 type, u16 zero, u32 session) and
 * the payload. Both sides close the stream on a frame that is too long, of an unknown type or malformed. The bytes of an
 * INDEX session are described in domain/tree/index-stream.ts.
 *
 * Session 0 is the stream itself. The host numbers its sessions from 1; ids of sessions that the guest opens have
 * SESSION_GUEST_BIT set and count up. No id is used twice. The agent drops frames for a session that is over: the host
 * may have sent them before it received the session's last frame. For the same reason the host drops a NET_RESET of a
 * session that it has refused.
 *
 * A name on the wire is in lower case: labels of 1 to 63 letters, digits, `-` and `_`, joined by dots, no final dot. The
 * agent requests no other name: it answers the guest's programs that it does not exist.
 */
export const PROTOCOL_VERSION = 6;
export const FRAME_HEADER_BYTES = 12;
/** Longest payload in `bytes`: large enough that headers cost little, small enough for fixed buffers. */
export const FRAME_PAYLOAD_BYTES_MAX = 65_536;
/** Limit of EXEC sessions in one guest. */
export const PROCESSES_COUNT_MAX = 64;
/** Limit of sessions of all other requests with more than one answer or frame. */
export const TASKS_COUNT_MAX = 16;
/** Limit of connections, whichever side opened them. */
export const CONNECTIONS_COUNT_MAX = 256;
/** Limit of FILE_OPEN sessions, without watches. */
export const FILES_COUNT_MAX = 24;
/** Limit of watches. They may last for any time, so they have sessions of their own. */
export const WATCHES_COUNT_MAX = 64;
/** Set in the ids of sessions that the guest opens. */
export const SESSION_GUEST_BIT = 0x8000_0000;
/** Longest EXEC specification in `bytes`: ARG_MAX of the guest, and room for the lengths. */
export const EXEC_SPEC_BYTES_MAX = 4_194_304;
/** Payload of EXIT in `bytes`. */
export const EXIT_BYTES = 112;
/** A session in RESUMED, in `bytes`. */
export const SESSION_BYTES = 80;
/** Initial credit of each output stream, granted by the host, in `bytes`. */
export const WINDOW_BYTES_INITIAL = 262_144;
/** The part of it that the agent keeps of a command in any case, in `bytes`. A host that grants half of it is never waited for. */
export const KEEP_BYTES_MIN = 16_384;
/** Initial credit of standard input and of each direction of a connection, in `bytes`. */
export const INPUT_WINDOW_BYTES_INITIAL = 65_536;
/** Largest credit of such a stream, in `bytes`. A fast reader gets more than the initial credit. */
export const INPUT_WINDOW_BYTES_MAX = 262_144;
/** Length of the entropy in a SYNC frame, in `bytes`. */
export const SYNC_ENTROPY_BYTES = 32;
/** Limit of layers in a MOUNT frame. */
export const LAYERS_COUNT_MAX = 128;
/** Longest name in NET_OPEN and RESOLVE, in `bytes`. */
export const NAME_BYTES_MAX = 253;
/** Longest limit in a QUIESCE frame, in `milliseconds`. */
export const QUIESCE_MS_MAX = 60_000;

/** Payload of FILE_OPEN before its strings, in `bytes`. */
export const FILE_OPEN_FIXED_BYTES = 52;
/** Length of a string of FILE_OPEN that stands for "none": the attribute is removed. */
export const FILE_STRING_NONE = 0xffff;
/** Fixed parts of the records of a FILE_OPEN session, in `bytes`; a record of progress has no other part. */
export const FILE_ENTRY_FIXED_BYTES = 56;
export const FILE_PROGRESS_BYTES = 12;
export const FILE_WATCH_FIXED_BYTES = 16;
export const FILE_USER_FIXED_BYTES = 20;
/** Limit of the attributes in an entry record, in `bytes`. */
export const FILE_ATTRIBUTES_BYTES_MAX = 4096;
/** Deepest listing. */
export const FILE_DEPTH_MAX = 64;
/** Limit of directories that one session watches. */
export const FILE_WATCHES_COUNT_MAX = 4096;

/** Frame types, host to agent. */
export const HostFrame = {
  /** u32 version, u32 zero, u64 nonce, u64 realtime ns, 32 bytes of entropy -> SYNCED. Sets the clock, reseeds, ends HOLD. */
  sync: 1,
  /**
   * u16 layer count, u16 flags -> DONE, ERROR. The agent finds the disks by their serials L00 to L127 and S. Flags: 0, only
   * the layers; 1, also the scratch, with an overlay of all as the root of commands; 2, the scratch without an overlay,
   * for MERGE.
   */
  mount: 2,
  /** u32 mode, u32 uid, u32 gid, u32 zero, u64 size in bytes, path -> DONE or ERROR after `size` bytes of PUT_DATA. */
  putOpen: 3,
  putData: 4,
  /**
   * u32 spec bytes, u32 flags (ExecFlag), u64 timeout ms, u32 target, u32 uid, u32 gid, u16 rows, u16 columns, u32 tag; then
   * EXEC_SPEC until complete -> STARTED, OUTPUT*, EXIT, or ERROR. `target` is the session of a running process, or 0. The tag
   * is the host's, which finds the command by it in RESUMED.
   * EXEC_SPEC: u32 length and bytes each: hostname, user, working directory; u32 count and the arguments; u32 count and the
   * variables. User: "", or a name or number, optionally with `:` and a group, which the guest's passwd and group resolve in
   * place of uid and gid; only then the working directory may be "", the user's home. ERROR ENOENT with a text that
   * begins with "user " or "group ": it is unknown.
   * With a target, the command joins that process' pid, mount, IPC, UTS and network namespaces and ends with it at the
   * latest. It has a cgroup of its own, and the hostname of the specification is ignored. Rows and columns are 0 without a
   * terminal. A terminal has one output stream, standard output. With a target or `idle`, there may be no time limit (0).
   */
  execOpen: 5,
  execSpec: 6,
  /**
   * bytes for standard input; an empty payload ends it, at a terminal by its end-of-file character (^D). Needs credit. Also
   * the content for FileOp.write, whose first credit is the same.
   */
  stdin: 7,
  /** u32 signal number, u32 flags (1: to the command's process group, 0: to the command alone). */
  signal: 8,
  /**
   * u32 stream, u32 bytes: the host grants that much more credit for the stream. For the output of a command it means that
   * these bytes, which it has received, are never needed again: the agent keeps the others for the next host.
   */
  window: 9,
  /**
   * no payload: ends remaining processes, unmounts an overlay, trims, remounts the scratch read-only -> DONE (u64 bytes
   * trimmed).
   */
  freeze: 10,
  /** u16 disk (0..127 layer, 0xffff scratch): walks /upper of the disk -> OUTPUT (stream 1)*, DONE (u64 entries), or ERROR. */
  index: 11,
  /** no payload: merges all layers into the scratch, as one layer that replaces them on any base -> DONE (u64 entries), ERROR. */
  merge: 12,
  /**
   * no payload, after FREEZE or a MOUNT of layers alone: unmounts and forgets all disks -> DONE, ERROR. A new MOUNT may
   * follow.
   */
  release: 13,
  /**
   * u32 flags (NetworkFlag) -> DONE, or ERROR when the guest's kernel could not set the network up. Until then the agent
   * refuses connections and names itself, and sends nothing. Without `on` it does so again.
   */
  network: 14,
  /** no payload: the host has connected to the address of NET_OPEN. NET_DATA may follow at once. */
  netAccept: 15,
  /** u32 reason (Refusal): ends a session of NET_OPEN. */
  netRefuse: 16,
  /** bytes of a connection, at least one. Needs credit. */
  netData: 17,
  /** no payload: no NET_DATA follows. When both sides have sent it and the guest's program has read everything -> DONE. */
  netEnd: 18,
  /** no payload: ends the connection at once. The agent answers NET_RESET, unless its session is already over. */
  netReset: 19,
  /**
   * session = the number of RESOLVE, u32 DNS response code below 16: 0 the name may be used, 2 try again, 3 it does not exist.
   * The agent has at most 64 queries under way, and forgets one without an answer after 30 s.
   */
  resolved: 20,
  /** u16 port, u16 zero: connect to 127.0.0.1:port of the guest -> NET_OPENED, NET_REFUSED, or ERROR. */
  netDial: 21,
  /**
   * no payload -> DONE, ERROR. After DONE nothing flows in either direction until a SYNC ends the hold, so that the stream
   * of a copied machine is between two frames. ERROR when other requests than running processes and open connections are
   * under way, FILE_OPEN included.
   */
  hold: 22,
  /** u16 rows, u16 columns: the new size of a process' terminal. */
  resize: 23,
  /** no payload: writes cached data to the scratch while commands run -> DONE, ERROR. */
  flush: 24,
  /**
   * u32 ms (1 to QUIESCE_MS_MAX): stops all writes to the scratch while commands run -> QUIESCED when no write is under
   * way, and DONE (u64 ns without writes) after a THAW. ERROR when that is impossible, or when writes resumed before the
   * THAW, so that a copy made meanwhile is useless: ETIMEDOUT, the limit ended; ECANCELED, a process reached its time limit
   * in the middle of a write and could not be killed; EINVAL, root in the guest thawed it. No file can be put meanwhile; the
   * process of a FILE_OPEN that writes waits, and dies only afterwards.
   */
  quiesce: 25,
  /** no payload: allows the writes that QUIESCE stopped. */
  thaw: 26,
  /** u64 timeout ms, at least 1: the new time limit of a process, counted from its start as in EXEC_OPEN. */
  limit: 27,
  /**
   * u32 target, u16 FileOp, u16 flags (FileFlag), u32 uid, u32 gid, u32 mode, u32 uid and u32 gid of the owner, u32 depth,
   * u64 offset, u64 length, u16 number of strings, u16 zero; then the strings, each u16 length and bytes: the user, the
   * path, and those of the operation -> OUTPUT (stream 1)*, DONE (u64, see FileOp), or ERROR.
   *
   * A process of its own does the work, in the mount namespace of the running command `target`, as the user. The session
   * ends with ERROR ESRCH when the target ends; the target's EXIT follows. User: "" means uid and gid without supplementary
   * groups, any other is resolved as in EXEC_SPEC, and uid and gid must be 0 then. Paths are absolute. ERROR has the errno
   * of the system call that failed; ENOENT with a text that begins with "user " or "group " for an unknown user.
   */
  fileOpen: 28,
  /** no payload: ends the session's process -> ERROR ECANCELED, when it is dead. */
  fileEnd: 29,
  /**
   * no payload, for a watch that is ready: sends the records of all that happened before, and then one of `synced`. A second
   * one before that record may have none of its own.
   */
  fileSync: 30,
  /**
   * u32 version, u32 zero, u64 nonce -> RESUMED, or ERROR EPROTO for another version, which changes nothing. When
   * sessions are left from an earlier connection, the agent accepts only this frame after its HELLO. It may be repeated at
   * any time but during a hold.
   */
  resume: 31,
  /** no payload: the host needs the session's EXIT no more, which it has received or was listed with. Frees the session. */
  forget: 32,
  /** no payload -> DONE, the last frame of this connection: the host leaves as if it had ended. Only RESUME may follow. */
  leave: 33,
  /** no payload -> DONE: the agent has received all frames before it. Those that are only sent can be lost with the host. */
  receipt: 34,
} as const;

/** Frame types, agent to host. */
export const AgentFrame = {
  /** u32 version, u32 zero, text: kernel release. Session 0, first frame of every connection; on a port only after boot. */
  hello: 129,
  /** u64 nonce of the SYNC. */
  synced: 130,
  /** u64 value, whose meaning depends on the request. */
  done: 131,
  /** u32 errno, u32 zero, text that names the failed step. Ends the session. */
  error: 132,
  /** u32 pid of the command in its namespace. */
  started: 133,
  /** u32 stream, bytes, at least one. Needs credit. */
  output: 134,
  /**
   * u32 flags (ExitFlag), u32 exit code (128+n for signal n), u64 CPU µs and u64 peak bytes of the cgroup, u64 wall µs,
   * u32 status of wait(2), u32 zero; then, of the command and the children that it waited for, u64 each: user µs, system
   * µs, largest resident set in KiB, minor and major faults, blocks in and out, voluntary and involuntary context
   * switches. The last frame of the session, which lasts until FORGET.
   */
  exit: 135,
  /** u32 stream (0 standard input, 3 a connection), u32 bytes: the agent grants that much more credit. */
  window: 136,
  /** text for the log. */
  log: 137,
  /**
   * u16 port, u8 AddressKind, u8 zero, then the name, or 4 or 16 bytes -> NET_ACCEPT, or NET_REFUSE, which ends the session, or
   * NET_RESET. The guest's program waits for that. When it has given up before, the agent answers NET_ACCEPT with NET_RESET
   * after 3 s. Instead of waiting for the answer the agent may end the session with NET_RESET.
   */
  netOpen: 138,
  netData: 139,
  netEnd: 140,
  /** no payload: the connection is over. Frames of the host that are still on their way are dropped. */
  netReset: 141,
  /** session = a number that is counted like a session's id, u16 DNS type, name -> RESOLVED. */
  resolve: 142,
  /** no payload: the connection of NET_DIAL is open. */
  netOpened: 143,
  /** u32 reason (Refusal): ends a session of NET_DIAL. */
  netRefused: 144,
  /** no payload: the scratch does not change until the session ends. */
  quiesced: 145,
  /**
   * u64 nonce of the RESUME, u32 state of the disks (DisksState), u32 count; then that many sessions of SESSION_BYTES, which are
   * all that are left: EXEC sessions whose command has started, or still may. OUTPUT follows from `kept` on, and EXIT of those that
   * have finished; STARTED only of those that had not. What came before on this connection is void.
   *
   * Session: u32 id, u32 target, u32 flags (SessionFlag), u32 pid (0 before the start), u32 tag, u32 zero, u64 bytes of standard
   * input received, u64 credit of the host for standard input, u64 each offset of the first byte of standard output and of
   * standard error that is kept, u64 ms since the start, u64 bytes kept, u64 time limit in ms (0: none).
   *
   * Everything else is over. An EXEC that is not in the list has not run: its request was not complete, or its ERROR was lost.
   */
  resumed: 146,
} as const;

export const Stream = { stdin: 0, stdout: 1, stderr: 2, data: 3 } as const;
export const MountFlag = { scratch: 1, bare: 2 } as const;
/**
 * stdin: bytes for standard input follow. terminal: the three streams are a terminal, and standard input follows. idle: no
 * program is executed, and the first process of the namespaces waits for any signal of the host, which ends it; allowed
 * without a target and alone. linger: what the command leaves behind stays until the target ends, and keeps the outputs open;
 * only with a target. EXIT waits for the ends of the outputs, until the host sends SIGTERM or SIGKILL or the time limit ends.
 * The time limit ends the process group alone.
 */
export const ExecFlag = { stdin: 1, terminal: 2, idle: 4, linger: 8 } as const;
/**
 * Operations of FILE_OPEN. What they send is, unless said otherwise, one entry record: of the file that they made, changed
 * or moved. Operations that take long send a progress record each second before it. Fields and flags that an operation does
 * not name must be 0.
 */
export const FileOp = {
  /** Flags: follow. */
  stat: 1,
  /**
   * Flags: follow, attributes. Depth: 0 to FILE_DEPTH_MAX. Entry records: first of what the path leads to, with an empty path and no
   * link; if it is a directory, then of its entries down to `depth`, each directory before its entries, in no other order.
   * Symlinks below the path are not followed, and have their targets' status with the flag. Directories that the user may
   * not read, and directories that vanish, seem empty; entries with paths over 4096 bytes are left out. DONE: number of
   * records.
   */
  list: 2,
  /**
   * Flags: follow. Offset, length (u64 max: to the end). An entry record, then the bytes, which are never more than the
   * size in the record; fewer when the file shrinks meanwhile. A size of u64 max means that the file has none, as in /proc:
   * it is read to its end. Only regular files: EISDIR, ENOTSUP. DONE: number of bytes.
   */
  read: 3,
  /**
   * STDIN until its end becomes the content. Flags: parents, atomic, append, exclusive, mode, owner. Further strings:
   * names and values of attributes to set, in turn. Without `atomic` a file that exists stays the same file, a symlink is
   * followed, and the order is: create, owner, mode, attributes, truncate, write. With `atomic` the content gets a temporary
   * name in the directory, which takes the place of the name at the end; a file keeps its mode, and with uid 0 its owner.
   * Blocks of zeros become holes. DONE: number of bytes written.
   */
  write: 4,
  /** Flags: parents, exclusive, mode, owner. A directory that exists is no error unless `exclusive`. DONE: 1 created, 0 existed. */
  directory: 5,
  /** Flags: recursive. Follows no symlink, enters no mount. Only progress records (entries removed). DONE: entries removed. */
  remove: 6,
  /**
   * Third string: the new path. Flags: parents, replace, owner (of parents). Between file systems it copies and removes, with
   * progress records (entries moved). EEXIST without `replace`. DONE: 0.
   */
  move: 7,
  /** Flags: follow, mode, owner. Further strings: names and values of attributes, in turn; FILE_STRING_NONE removes. DONE: 0. */
  attributes: 8,
  /**
   * Like an atomic `write` whose content is that of the files of the further strings, one after the other; they stay. Flags:
   * parents, exclusive, mode, owner. Progress records (bytes). DONE: number of bytes.
   */
  join: 9,
  /**
   * Flags: follow, recursive. Watch records until the session is ended, the first is `ready`. Ends with DONE after
   * `gone`. ENOTDIR for another file; ENOSPC when there are more than FILE_WATCHES_COUNT_MAX directories at first.
   */
  watch: 10,
  /** Resolves the user; the path is "/". A user record. DONE: 0. */
  user: 11,
} as const;
/**
 * follow: the last component of the path may be a symlink that is followed. parents: missing directories above the path are
 * made with mode 0755. mode, owner: the frame has them; the owner is that of everything that is made. attributes: the records
 * of a list have those of the files.
 */
export const FileFlag = {
  follow: 1,
  parents: 2,
  recursive: 4,
  atomic: 8,
  append: 16,
  replace: 32,
  exclusive: 64,
  mode: 128,
  owner: 256,
  attributes: 512,
} as const;
/*
 * Records of a FILE_OPEN session. All begin with u32 length, this field included. A record is not longer than 0x40000 bytes.
 *
 * Entry: u32 st_mode, u32 uid, u32 gid, u64 size, i64 mtime ns, u64 inode, u32 links, u16 each the lengths of path, link, user
 * name and group name, u32 length of the attributes; then these. Path: as requested; in a list relative to the listed path.
 * Link: the text of a symlink; with `follow`, of a symlink that does not dangle, the absolute path of its target, without
 * symlinks, and all other fields are the target's. Names are empty when the guest has none. Attributes: u16 length of a name,
 * u16 length of a value, name, value, and so on; only those of the `user.` namespace, as many as fit; in a list on
 * request.
 *
 * Progress: u64 number.
 *
 * Watch: u32 FileEvent, u32 cookie (the same in both parts of a rename), u16 length of the path, u16 zero; then the path
 * relative to the watched directory, empty for the directory itself.
 *
 * User: u32 uid, u32 gid, u16 each the lengths of name, home and shell, u16 number of supplementary groups; then the groups, u32
 * each, and name, home and shell.
 */
/** overflow: events were lost. ready: the watch is complete. gone: the watched directory was removed. synced: see FILE_SYNC. */
export const FileEvent = {
  create: 1,
  write: 2,
  remove: 3,
  renameFrom: 4,
  renameTo: 5,
  chmod: 6,
  overflow: 7,
  ready: 8,
  gone: 9,
  synced: 10,
} as const;
export const SignalFlag = { group: 1 } as const;
export const ExitFlag = { timedOut: 1, oomKilled: 2 } as const;
/** on: there is a network. */
export const NetworkFlag = { on: 1 } as const;
/**
 * started: the command has. finished: an EXIT follows. stdinEnded: the host has sent the end of standard input. The
 * others are the flags of EXEC_OPEN.
 */
export const SessionFlag = {
  started: 1,
  finished: 2,
  terminal: 4,
  stdinEnded: 8,
  stdin: 16,
  idle: 32,
  linger: 64,
} as const;
/** layers: only they are mounted. root: commands can run. bare: a scratch for MERGE. frozen: the scratch is read-only. */
export const DisksState = { none: 0, layers: 1, root: 2, bare: 3, frozen: 4 } as const;
export const AddressKind = { name: 0, ipv4: 4, ipv6: 6 } as const;
/** Why a connection was not made. */
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
