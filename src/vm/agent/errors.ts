/** The guest reported that a step failed. */
export class AgentError extends Error {
  override readonly name = "AgentError";
  /** Linux error number */
  readonly errno: number;

  constructor(errno: number, message: string) {
    super(message);
    this.errno = errno;
  }
}

/** The guest sent bytes that an honest agent never sends. The machine must be killed. */
export class AgentProtocolError extends Error {
  override readonly name = "AgentProtocolError";
}

/** The agent speaks another version of the protocol: another release of the host has started its machine. */
export class AgentVersionError extends Error {
  override readonly name = "AgentVersionError";
}

/** The host's log lacks output that the agent has forgotten, so the output cannot be continued. */
export class OutputGapError extends Error {
  override readonly name = "OutputGapError";
}

/** The stream closed before the last frame of a session. */
export class AgentClosedError extends Error {
  override readonly name = "AgentClosedError";
}

/** The guest did not accept a connection. */
export class AgentRefusedError extends Error {
  override readonly name = "AgentRefusedError";
  /** a value of `Refusal` in protocol.ts */
  readonly reason: number;

  constructor(reason: number) {
    super(`the connection was refused, reason ${reason}`);
    this.reason = reason;
  }
}
