import type { ComponentChildren, Ref } from "preact";
import { useEffect, useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { classes } from "./classes.ts";

/** Delay from the last key until a text is used, in `milliseconds`: browsers limit changes of the address. */
const REST_MS = 400;

interface Labelled {
  readonly label: string;
  /** true: the label is for screen readers alone */
  readonly isLabelHidden?: boolean | undefined;
  /** what to write, and in which unit */
  readonly hint?: ComponentChildren;
  /** what is wrong with the value */
  readonly problem?: string | undefined;
}

/** A label, a control, its hint and its problem, tied together. */
function Labelling(props: Labelled & { readonly id: string; readonly children: ComponentChildren }) {
  const { id, label, isLabelHidden, hint, problem, children } = props;
  return (
    <div class="field stack gap-1 shrink">
      <label class={classes("medium", isLabelHidden && "visually-hidden")} for={id}>
        {label}
      </label>
      {children}
      {problem === undefined || problem === "" ? null : (
        <p class="field-problem danger small" id={`${id}-problem`}>
          {problem}
        </p>
      )}
      {hint === undefined ? null : (
        <p class="field-hint muted small" id={`${id}-hint`}>
          {hint}
        </p>
      )}
    </div>
  );
}

interface Described {
  readonly "aria-describedby"?: string;
  readonly "aria-invalid"?: boolean;
}

function described(id: string, { hint, problem }: Labelled): Described {
  const isWrong = problem !== undefined && problem !== "";
  const ids = classes(isWrong && `${id}-problem`, hint !== undefined && `${id}-hint`);
  return { ...(ids === "" ? {} : { "aria-describedby": ids }), ...(isWrong ? { "aria-invalid": true } : {}) };
}

export interface FieldProps extends Labelled {
  readonly value: string;
  readonly onValue: (value: string) => void;
  /** number of visible lines; absent: one line */
  readonly rows?: number;
  /** for commands, paths and ids */
  readonly isMono?: boolean;
  readonly type?: "text" | "password" | "number" | "search" | "url";
  readonly name?: string;
  readonly placeholder?: string;
  readonly inputMode?: "text" | "numeric" | "decimal" | "search";
  /** kind of value that the browser may fill in; absent: none */
  readonly autocomplete?: "off" | "current-password";
  readonly isRequired?: boolean;
  readonly isDisabled?: boolean;
  readonly min?: number;
  readonly max?: number;
  readonly onKeyDown?: (event: KeyboardEvent) => void;
  /** id of a `<datalist>` */
  readonly list?: string;
  readonly inputRef?: Ref<HTMLInputElement>;
}

/** A field for text. */
export function Field(props: FieldProps) {
  const id = useId();
  const { value, onValue, rows, isMono, placeholder, onKeyDown, inputRef } = props;
  const { autocomplete = "off", type = "text", isRequired, isDisabled, name, inputMode, min, max, list } = props;
  const shared = {
    id,
    name,
    value,
    placeholder,
    onKeyDown,
    class: classes("input", isMono && "mono"),
    spellcheck: false,
    required: isRequired === true,
    disabled: isDisabled === true,
    ...described(id, props),
  };
  return (
    <Labelling {...labelledOf(props)} id={id}>
      {rows === undefined ? (
        <input
          {...shared}
          {...{ autocomplete, inputMode, min, max, list }}
          // Its type has a member for each value, of which this is any.
          type={type as "text"}
          ref={inputRef ?? null}
          onInput={(event) => onValue(event.currentTarget.value)}
        />
      ) : (
        <textarea {...shared} rows={rows} onInput={(event) => onValue(event.currentTarget.value)} />
      )}
    </Labelling>
  );
}

function labelledOf({ label, isLabelHidden, hint, problem }: Labelled): Labelled {
  return { label, hint, problem, isLabelHidden };
}

export interface Choice<Value extends string = string> {
  readonly value: Value;
  readonly label: string;
}

export interface SelectProps<Value extends string> extends Labelled {
  readonly value: Value;
  readonly choices: readonly Choice<Value>[];
  readonly onValue: (value: Value) => void;
  readonly disabled?: boolean;
}

/** A selection from a list, by the browser's own control. */
export function Select<Value extends string>({ value, choices, onValue, disabled, ...labelled }: SelectProps<Value>) {
  const id = useId();
  return (
    <Labelling {...labelled} id={id}>
      <select
        id={id}
        class="input select"
        value={value}
        disabled={disabled === true}
        {...described(id, labelled)}
        onChange={(event) => onValue(event.currentTarget.value as Value)}
      >
        {choices.map((choice) => (
          <option key={choice.value} value={choice.value}>
            {choice.label}
          </option>
        ))}
      </select>
    </Labelling>
  );
}

export interface CheckboxProps {
  readonly label: ComponentChildren;
  readonly hint?: ComponentChildren;
  readonly isChecked: boolean;
  readonly onChecked: (isChecked: boolean) => void;
  readonly disabled?: boolean;
}

export function Checkbox({ label, hint, isChecked, onChecked, disabled }: CheckboxProps) {
  const id = useId();
  return (
    <div class="checkbox">
      <input
        id={id}
        type="checkbox"
        checked={isChecked}
        disabled={disabled === true}
        aria-describedby={hint === undefined ? undefined : `${id}-hint`}
        onChange={(event) => onChecked(event.currentTarget.checked)}
      />
      <label for={id}>{label}</label>
      {hint === undefined ? null : (
        <p class="field-hint muted small" id={`${id}-hint`}>
          {hint}
        </p>
      )}
    </div>
  );
}

/**
 * The text of a field while the user types. Follows `value` when that changes.
 * @param tell is called with the text after a pause in typing
 */
export function useTyped(value: string, tell: (text: string) => void): readonly [string, (text: string) => void] {
  const [text, setText] = useState(value);
  // Calls the function of the latest drawing.
  const latest = useRef(tell);
  latest.current = tell;
  // Before the next key: a later effect would remove a letter.
  useLayoutEffect(() => setText(value), [value]);
  useEffect(() => {
    if (text === value) return;
    const timer = setTimeout(() => latest.current(text), REST_MS);
    return () => clearTimeout(timer);
  }, [text]);
  return [text, setText];
}
