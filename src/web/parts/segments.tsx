import type { Choice } from "./field.tsx";

export interface SegmentsProps<Value extends string> {
  /** name of the choice, for screen readers */
  readonly label: string;
  readonly value: Value;
  readonly choices: readonly Choice<Value>[];
  readonly onValue: (value: Value) => void;
}

/** A choice of two or three values, all of them visible. */
export function Segments<Value extends string>({ label, value, choices, onValue }: SegmentsProps<Value>) {
  return (
    <div class="segments rigid" role="group" aria-label={label}>
      {choices.map((choice) => (
        <button
          key={choice.value}
          type="button"
          class="segment medium quiet"
          aria-pressed={choice.value === value}
          onClick={() => onValue(choice.value)}
        >
          {choice.label}
        </button>
      ))}
    </div>
  );
}
