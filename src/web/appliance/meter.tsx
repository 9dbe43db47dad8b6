import type { ComponentChildren } from "preact";

export interface MeterProps {
  readonly label: string;
  readonly used: number;
  readonly total: number;
  /** a figure for people */
  readonly text: (value: number) => string;
  readonly note?: ComponentChildren;
}

/** How much of something is used: as a bar, and in figures. */
export function Meter({ label, used, total, text, note }: MeterProps) {
  const share = total > 0 ? Math.min(1, used / total) : 0;
  const said = `${text(used)} of ${text(total)}`;
  return (
    <div class="appliance-meter stack gap-1">
      <div class="flex baseline between gap-3">
        <span class="muted">{label}</span>
        <span class="number">
          <strong>{text(used)}</strong> <span class="muted">of {text(total)}</span>
        </span>
      </div>
      <div
        class="appliance-bar flex"
        role="meter"
        aria-label={label}
        aria-valuemin={0}
        aria-valuemax={total}
        aria-valuenow={Math.min(used, total)}
        aria-valuetext={said}
      >
        {share === 0 ? null : (
          <span class="appliance-bar-part appliance-bar-used" style={{ width: `${share * 100}%` }} />
        )}
      </div>
      {note === undefined ? null : <p class="muted small">{note}</p>}
    </div>
  );
}
