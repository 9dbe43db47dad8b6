/** The way in which a call of the stand-in fails. */
export interface Failure {
  readonly endpoint: string;
  readonly how: "hang" | "500" | "die" | "exit" | "garbage" | "close" | "flood";
  /** only the first time; default is always */
  readonly once?: boolean;
  /** number of calls of the endpoint that succeed before */
  readonly skip?: number;
}

/** The behaviour of a stand-in; the file control.json of its root. */
export interface Control {
  readonly failures?: readonly Failure[];
  /**
   * Events of the guest after an answered call, or after "vsock.close", the end of a host's connection. Source `raw` writes the
   * event unchanged, `stderr` ends the VMM with it.
   */
  readonly events?: readonly {
    readonly after: string;
    readonly source: string;
    readonly event: string;
    readonly properties?: Record<string, string>;
  }[];
  /** text on the guest's console before an event */
  readonly console?: string;
  /**
   * Faults of a hostile program's snapshot. config: it leaves out a protection. link: a file is a link. large: the memory is
   * longer than the guest's. open: the program keeps the memory open, and writes to it at every later ping.
   */
  readonly snapshot?: "config" | "link" | "large" | "open";
  /** refused calls are part of the test */
  readonly refusals?: boolean;
  readonly agentPort?: number;
}

/** A line of the transcript. */
export interface TranscriptLine {
  readonly call?: string;
  /** of the answer; 0 for a call that the test made fail */
  readonly status?: number;
  readonly body?: unknown;
  /** violations of the API by the client */
  readonly violation?: string;
}
