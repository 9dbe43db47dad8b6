import { useState } from "preact/hooks";
import { forkSandboxMemory } from "../../../client/forks.ts";
import { startCheckpoint } from "../../../client/imports.ts";
import { endSandbox, forkSandbox, pauseSandbox, resumeSandbox, rollbackSandbox } from "../../../client/sandboxes.ts";
import type { Sandbox } from "../../../client/types.ts";
import { given } from "../../../domain/given.ts";
import { MEMORY_FORK_COUNT_MAX } from "../../../domain/memory-fork.ts";
import { FORK_COUNT_MAX } from "../../../domain/sandbox.ts";
import { navigate } from "../../browser/router.ts";
import { api } from "../../data/api.ts";
import { problemOf } from "../../data/problem.ts";
import { useSession } from "../../data/session.ts";
import { Checkbox, Field } from "../../parts/field.tsx";
import { GuestText } from "../../parts/guest-text.tsx";
import type { MenuItem } from "../../parts/menu.tsx";
import { useToast } from "../../parts/toast.tsx";
import { countOf } from "../../text/format.ts";
import { ACTIONS, isPossible, type SandboxAction } from "../model/states.ts";
import { ConfirmChange, type QuestionProps } from "./confirm-change.tsx";
import { LifeQuestion } from "./life-question.tsx";

/** A saved state that is a new image, with a tag for it; an empty tag is none. */
interface Keeping {
  readonly keep: boolean;
  readonly tag: string;
}

function named(tag: string): { readonly tag?: string } {
  return given({ tag: tag.trim() || undefined });
}

interface Subject {
  readonly sandbox: Sandbox;
  readonly action: SandboxAction;
  /** for a rollback: the state to go to, and its name in the question */
  readonly target?: { readonly image: string; readonly label: string };
}

/** The question that is open, and the actions that open one. */
export interface Asking {
  readonly subject: Subject | null;
  /** Does an action, or asks about it first. */
  ask(subject: Subject): void;
  close(): void;
  /** Reads the sandbox again: an action has changed it, or was refused because another one had. */
  changed(): void;
  /** The possible actions on a sandbox. */
  itemsFor(sandbox: Sandbox): MenuItem[];
}

const IN_MENUS = ["resume", "pause", "checkpoint", "fork", "change", "end"] as const;

/** @param changed is called after an action, also after a refused one */
export function useAsking(changed: () => void): Asking {
  const [subject, setSubject] = useState<Subject | null>(null);
  const { may } = useSession();
  const toast = useToast();
  const resume = async ({ uuid, name }: Sandbox) => {
    try {
      await resumeSandbox(api, uuid, { wait: 0 });
    } catch (error) {
      toast(`${name} was not resumed: ${problemOf(error).message}`, { isProblem: true });
    }
    changed();
  };
  const ask = (next: Subject) => {
    // It ends nothing, and can be undone by a pause.
    if (next.action === "resume") void resume(next.sandbox);
    else setSubject(next);
  };
  const itemsFor = (sandbox: Sandbox) => {
    const items: MenuItem[] = IN_MENUS.filter((action) => isPossible(action, sandbox.state, may)).map((action) => ({
      label: ACTIONS[action].label,
      icon: ACTIONS[action].icon,
      isDangerous: action === "end",
      isApart: action === "end",
      onSelect: () => ask({ sandbox, action }),
    }));
    return items.length > 0 ? items : [{ label: "Show", icon: "sandbox" as const, href: `/sandboxes/${sandbox.uuid}` }];
  };
  return { subject, ask, changed, itemsFor, close: () => setSubject(null) };
}

/** The open question, if there is one. */
export function Question({ asking }: { readonly asking: Asking }) {
  const { subject, close, changed } = asking;
  if (subject === null) return null;
  const { sandbox, action, target } = subject;
  const shared = { sandbox, onClose: close, onChange: changed };
  switch (action) {
    case "pause":
      return <PauseQuestion {...shared} />;
    case "checkpoint":
      return <CheckpointQuestion {...shared} />;
    case "fork":
      return <ForkQuestion {...shared} />;
    case "rollback":
      return <RollbackQuestion {...shared} target={target ?? { image: "HEAD", label: "its head" }} />;
    case "end":
      return <EndQuestion {...shared} />;
    case "change":
      return <LifeQuestion {...shared} />;
    case "resume":
      return null;
  }
}

function NameOf({ sandbox }: Pick<QuestionProps, "sandbox">) {
  return <GuestText text={sandbox.name} isMono />;
}

function PauseQuestion({ sandbox, onClose, onChange }: QuestionProps) {
  const [memory, setMemory] = useState(false);
  return (
    <ConfirmChange
      title={
        <>
          Pause <NameOf sandbox={sandbox} />?
        </>
      }
      action="Pause"
      onClose={onClose}
      onChange={onChange}
      onConfirm={async () => void (await pauseSandbox(api, sandbox.uuid, { memory, wait: 0 }))}
    >
      <p>
        {ACTIONS.pause.effect} Resuming it starts with the saved files, and without processes, unless its memory is
        kept.
      </p>
      <Checkbox label="Keep its memory, so that its processes continue" isChecked={memory} onChecked={setMemory} />
    </ConfirmChange>
  );
}

function CheckpointQuestion({ sandbox, onClose, onChange }: QuestionProps) {
  const [tag, setTag] = useState("");
  const toast = useToast();
  return (
    <ConfirmChange
      title="Make a checkpoint?"
      action="Checkpoint"
      onClose={onClose}
      onChange={onChange}
      onConfirm={async () => {
        await startCheckpoint(api, { sandbox: sandbox.uuid }, named(tag));
        toast("The checkpoint is being made");
      }}
    >
      <p>{ACTIONS.checkpoint.effect} It has every completed write, but nothing that is only in memory.</p>
      <TagField value={tag} onValue={setTag} />
    </ConfirmChange>
  );
}

function TagField({ value, onValue }: { readonly value: string; readonly onValue: (value: string) => void }) {
  return (
    <Field
      label="Tag"
      hint="A name for the image. Without one, it is removed when there are too many newer ones."
      isMono
      value={value}
      onValue={onValue}
    />
  );
}

function ForkQuestion({ sandbox, onClose, onChange }: QuestionProps) {
  const [count, setCount] = useState("1");
  const [name, setName] = useState("");
  const toast = useToast();
  const [hasMemory, setMemory] = useState(false);
  const number = /^\d+$/.test(count.trim()) ? Number(count) : 0;
  const maximum = hasMemory ? MEMORY_FORK_COUNT_MAX : FORK_COUNT_MAX;
  const isReady = number >= 1 && number <= maximum;
  return (
    <ConfirmChange
      title={
        <>
          Fork <NameOf sandbox={sandbox} />?
        </>
      }
      action="Fork"
      isReady={isReady}
      onClose={onClose}
      onChange={onChange}
      onConfirm={async () => {
        const request = { count: number, ...given({ name: name.trim() || undefined }) };
        const [first, ...others] = hasMemory
          ? (await forkSandboxMemory(api, sandbox.uuid, request, 0)).sandboxes
          : await forkSandbox(api, sandbox.uuid, request, 0);
        toast(`${countOf(others.length + 1, "sandbox", "sandboxes")} opened`);
        if (first !== undefined) navigate(others.length === 0 ? `/sandboxes/${first.uuid}` : "/sandboxes");
      }}
    >
      <p>{ACTIONS.fork.effect} All of them are opened, or none.</p>
      <Field
        label="Number"
        type="number"
        min={1}
        max={maximum}
        value={count}
        onValue={setCount}
        problem={isReady ? undefined : `a number from 1 to ${maximum}`}
      />
      {sandbox.state === "running" ? (
        <Checkbox
          label="With memory"
          hint="Its processes continue in each of them, with every secret of their memory."
          isChecked={hasMemory}
          onChecked={setMemory}
        />
      ) : null}
      <Field label="Name" hint="Begins the names: NAME-1, NAME-2. Optional." isMono value={name} onValue={setName} />
    </ConfirmChange>
  );
}

function KeepFields(props: {
  readonly label: string;
  readonly keeping: Keeping;
  readonly onKeeping: (k: Keeping) => void;
}) {
  const { label, keeping, onKeeping } = props;
  return (
    <>
      <Checkbox
        label={label}
        hint="As a saved state with an image of its own."
        isChecked={keeping.keep}
        onChecked={(keep) => onKeeping({ ...keeping, keep })}
      />
      {keeping.keep ? <TagField value={keeping.tag} onValue={(tag) => onKeeping({ ...keeping, tag })} /> : null}
    </>
  );
}

function RollbackQuestion(props: QuestionProps & { readonly target: NonNullable<Subject["target"]> }) {
  const { sandbox, target, onClose, onChange } = props;
  const isRunning = sandbox.state === "running";
  const [keeping, setKeeping] = useState<Keeping>({ keep: false, tag: "" });
  return (
    <ConfirmChange
      title={`Roll back to ${target.label}?`}
      action="Roll back"
      isDangerous={isRunning && !keeping.keep}
      onClose={onClose}
      onChange={onChange}
      onConfirm={async () => {
        const image = { image: target.image, ...(keeping.keep ? { keep: true, ...named(keeping.tag) } : {}) };
        await rollbackSandbox(api, sandbox.uuid, image, 0);
      }}
    >
      <p>
        {ACTIONS.rollback.effect}
        {isRunning ? " Its processes end, and what was not saved is lost." : ""}
      </p>
      {isRunning ? <KeepFields label="Keep what is given up" keeping={keeping} onKeeping={setKeeping} /> : null}
    </ConfirmChange>
  );
}

function EndQuestion({ sandbox, onClose, onChange }: QuestionProps) {
  const [keeping, setKeeping] = useState<Keeping>({ keep: false, tag: "" });
  return (
    <ConfirmChange
      title={
        <>
          End <NameOf sandbox={sandbox} />?
        </>
      }
      action="End"
      isDangerous
      onClose={onClose}
      onChange={onChange}
      onConfirm={async () => {
        await endSandbox(api, sandbox.uuid, keeping.keep ? { keep: true, ...named(keeping.tag) } : {}, 0);
      }}
    >
      <p>{ACTIONS.end.effect}</p>
      {sandbox.state === "running" ? (
        <KeepFields label="Save its files first" keeping={keeping} onKeeping={setKeeping} />
      ) : null}
    </ConfirmChange>
  );
}
