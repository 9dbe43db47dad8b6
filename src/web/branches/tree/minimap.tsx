import { useLayoutEffect, useRef } from "preact/hooks";
import type { Drawing } from "../model/branches.ts";
import { sizeOf } from "./camera.ts";
import { type Palette, paintSmall, reductionOf } from "./paint.ts";
import type { Stage } from "./stage.ts";

const SIZE = { width: 176, height: 116 };

export interface MinimapProps {
  readonly stage: Stage;
  readonly drawing: Drawing;
  readonly palette: Palette;
  readonly onMove: () => void;
}

/** The whole drawing with a frame around the visible part, unless all of it is visible. Not for the keyboard. */
export function Minimap({ stage, drawing, palette, onMove }: MinimapProps) {
  const { layout } = drawing;
  const { camera, view } = stage;
  const drawn = sizeOf(layout);
  const seen = { width: view.width / camera.scale, height: view.height / camera.scale };
  const isAllSeen =
    camera.x <= 0 && camera.y <= 0 && camera.x + seen.width >= drawn.width && camera.y + seen.height >= drawn.height;
  if (isAllSeen || view.width < 4 * SIZE.width) return null;
  const by = reductionOf(layout, SIZE);
  const goTo = (event: PointerEvent) => {
    if (event.buttons !== 1) return;
    const target = event.currentTarget as HTMLElement;
    target.setPointerCapture(event.pointerId);
    const corner = target.getBoundingClientRect();
    const x = (event.clientX - corner.x) / by.x - seen.width / 2;
    stage.goTo(x, (event.clientY - corner.y) / by.y - seen.height / 2);
    onMove();
  };
  const left = Math.max(0, camera.x * by.x);
  const top = Math.max(0, camera.y * by.y);
  const frame = {
    left: `${left}px`,
    top: `${top}px`,
    width: `${Math.max(6, Math.min(SIZE.width, (camera.x + seen.width) * by.x) - left)}px`,
    height: `${Math.max(6, Math.min(SIZE.height, (camera.y + seen.height) * by.y) - top)}px`,
  };
  return (
    <div class="branches-minimap" aria-hidden="true" onPointerDown={goTo} onPointerMove={goTo}>
      <Small drawing={drawing} palette={palette} />
      <div class="branches-minimap-seen" style={frame} />
    </div>
  );
}

/** Repainted only when the drawing changes. */
function Small({ drawing, palette }: { readonly drawing: Drawing; readonly palette: Palette }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useLayoutEffect(() => {
    const element = canvas.current;
    const context = element?.getContext("2d") ?? null;
    if (element === null || context === null) return;
    const ratio = devicePixelRatio;
    element.width = SIZE.width * ratio;
    element.height = SIZE.height * ratio;
    paintSmall(context, drawing.layout, SIZE, palette, ratio);
  }, [drawing, palette]);
  return <canvas ref={canvas} />;
}
