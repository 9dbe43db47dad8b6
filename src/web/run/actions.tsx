import { useState } from "preact/hooks";
import { answerOf } from "../../client/client.ts";
import { startCheckpoint } from "../../client/imports.ts";
import { cancelOperation, hasEnded } from "../../client/operations.ts";
import type { Operation, OperationRequest } from "../../client/types.ts";
import { DURATION_FORM, secondsOfDuration } from "../../domain/text/quantities.ts";
import { queryOf } from "../browser/links.ts";
import { navigate } from "../browser/router.ts";
import { api } from "../data/api.ts";
import { useSession } from "../data/session.ts";
import { resultImage } from "../operations/outcome.ts";
import { Button, ButtonLink } from "../parts/button.tsx";
import { Confirm } from "../parts/dialog.tsx";
import { Field } from "../parts/field.tsx";
import { Menu, type MenuItem } from "../parts/menu.tsx";
import { useToast } from "../parts/toast.tsx";

interface ActionsProps {
  readonly operation: Operation;
  readonly request: OperationRequest | undefined;
  /** called after an action */
  readonly onChange: () => void;
}

type Asking = "stop" | "checkpoint" | "extend" | null;

/** The possible actions on an operation. */
export function RunActions({ operation, request, onChange }: ActionsProps) {
  const { may } = useSession();
  const [asking, setAsking] = useState<Asking>(null);
  const { id, kind, status } = operation;
  const isRun = kind === "instance";
  const isOver = hasEnded(operation);
  const isRunning = isRun && status === "EXECUTING";
  const image = resultImage(operation);
  const mayRun = may("instances:spawn");
  const more: MenuItem[] = [
    ...(isRunning && may("instances:exec")
      ? [{ label: "Give it more time", icon: "clock" as const, onSelect: () => setAsking("extend") }]
      : []),
    ...(isRun && mayRun && !isOver
      ? [{ label: "Run again", icon: "run" as const, href: `/runs/new${queryOf({ from: id })}` }]
      : []),
    ...(request?.kind === "checkpoint"
      ? [{ label: "Go to the run", icon: "run" as const, href: `/runs/${request.instance}` }]
      : []),
    ...(request !== undefined && "sandbox" in request
      ? [{ label: "Go to the sandbox", icon: "sandbox" as const, href: `/sandboxes/${request.sandbox}` }]
      : []),
  ];
  const close = () => setAsking(null);
  return (
    <>
      {isOver && isRun && mayRun ? (
        <ButtonLink href={`/runs/new${queryOf({ from: id })}`} icon="run">
          Run again
        </ButtonLink>
      ) : null}
      {isOver && image !== undefined && mayRun ? (
        <ButtonLink href={`/runs/new${queryOf({ image })}`} icon="branch" tone="primary">
          {isRun ? "Fork from the end" : "Run here"}
        </ButtonLink>
      ) : null}
      {isRunning && may("instances:exec") ? (
        <Button icon="image" onClick={() => setAsking("checkpoint")}>
          Checkpoint
        </Button>
      ) : null}
      {isOver || kind === "sandbox" || !may("operations:cancel") ? null : (
        <Button icon="stop" onClick={() => setAsking("stop")}>
          Stop
        </Button>
      )}
      {more.length === 0 ? null : <Menu label="More about this run" items={more} />}
      {asking === "stop" ? <StopQuestion operation={operation} onClose={close} onChange={onChange} /> : null}
      {asking === "checkpoint" ? <CheckpointQuestion id={id} onClose={close} /> : null}
      {asking === "extend" ? <ExtendQuestion operation={operation} onClose={close} /> : null}
    </>
  );
}

function StopQuestion({
  operation,
  onClose,
  onChange,
}: Pick<ActionsProps, "operation" | "onChange"> & { readonly onClose: () => void }) {
  const isRun = operation.kind === "instance";
  return (
    <Confirm
      title={isRun ? "Stop this run?" : "Stop this operation?"}
      action="Stop"
      isDangerous
      onClose={onClose}
      onConfirm={async () => {
        await cancelOperation(api, operation.id);
        onChange();
      }}
    >
      <p>
        {isRun
          ? "Its processes end at once, and nothing is kept of its files: a stopped run makes no image. Its output stays."
          : "Everything that it has stored so far is removed."}
      </p>
    </Confirm>
  );
}

function CheckpointQuestion({ id, onClose }: { readonly id: string; readonly onClose: () => void }) {
  const [tag, setTag] = useState("");
  return (
    <Confirm
      title="Make a checkpoint?"
      action="Checkpoint"
      onClose={onClose}
      onConfirm={async () => {
        const request = tag.trim() === "" ? {} : { tag: tag.trim() };
        navigate(`/runs/${await startCheckpoint(api, id, request)}`);
      }}
    >
      <p>The run continues. The image has every completed write, but nothing that is only in memory.</p>
      <Field label="Tag" hint="A name for the image. Optional." isMono value={tag} onValue={setTag} />
    </Confirm>
  );
}

function ExtendQuestion({ operation, onClose }: { readonly operation: Operation; readonly onClose: () => void }) {
  const [time, setTime] = useState("15m");
  const toast = useToast();
  const seconds = secondsOfDuration(time);
  return (
    <Confirm
      title="Give the run more time?"
      action="Give more time"
      isReady={seconds !== null}
      onClose={onClose}
      onConfirm={async () => {
        const { started_at: startedAt } = operation;
        // The limit counts from the start of the command, a little after that of the operation.
        const ran = startedAt === undefined ? 0 : Math.max(0, Date.now() - Date.parse(startedAt)) / 1000;
        const route = api.v1.instances({ uuid: encodeURIComponent(operation.id) });
        const { timeout } = await answerOf(route.patch({ timeout: Math.ceil(ran + (seconds ?? 0)) }));
        toast(`The time limit is ${timeout} s from the start`);
      }}
    >
      <Field
        label="From now"
        hint="Such as 90s, 30m or 2h. The time limit can only grow."
        value={time}
        onValue={setTime}
        problem={seconds === null ? `timeout must be ${DURATION_FORM}` : undefined}
      />
    </Confirm>
  );
}
