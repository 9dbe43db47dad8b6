const NS_PER_MS = 1_000_000n;
/** The two clocks differ by less than a millisecond that is not over, and by what they drift apart meanwhile. */
const APART_NS_MAX = 5n * NS_PER_MS;

/** A clock that gives the time in ns since the epoch; it follows the system's when that is set. */
export function wallClock(): () => bigint {
  let offset = 0n;
  return () => {
    const monotonic = process.hrtime.bigint();
    const apart = BigInt(Date.now()) * NS_PER_MS - (monotonic + offset);
    if (apart > APART_NS_MAX || apart < -APART_NS_MAX) offset += apart;
    return monotonic + offset;
  };
}
