import pytest
import torch

from pfl_fast.data.augment import augment

BLACK = torch.tensor([-2.0, 0.5, 3.0])


def batch(count=40, height=9, width=7, channels_last=True):
    x = torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(0))
    keys = torch.arange(count) * 7919
    return (x.contiguous(memory_format=torch.channels_last) if channels_last else x), keys


def test_none_is_the_same_tensor():
    x, keys = batch()
    assert augment("none", x, keys, BLACK) is x


def test_about_half_of_the_images_are_flipped():
    x, keys = batch(400)
    out = augment("flip", x, keys, BLACK)
    mirrored = [torch.equal(a, b.flip(-1)) for a, b in zip(out, x, strict=True)]
    same = [torch.equal(a, b) for a, b in zip(out, x, strict=True)]
    assert all(a != b for a, b in zip(mirrored, same, strict=True))
    assert 150 < sum(mirrored) < 250


def test_crops_are_windows_of_the_padded_image():
    x, keys = batch(300)
    out = augment("crop-flip", x, keys, BLACK)
    padded = BLACK[:, None, None].expand(300, 3, 17, 15).clone()
    padded[:, :, 4:-4, 4:-4] = x
    seen = set()
    for result, source in zip(out, padded, strict=True):
        windows = {
            (row, column, flip): source[:, row : row + 9, column : column + 7].flip(-1) if flip else
            source[:, row : row + 9, column : column + 7]
            for row in range(9) for column in range(9) for flip in (False, True)
        }  # fmt: skip
        found = [place for place, window in windows.items() if torch.equal(result, window)]
        assert found
        seen.add(found[0])
    for place, values in enumerate((range(9), range(9), (False, True))):
        assert {window[place] for window in seen} == set(values)


def test_rotation_turns_around_the_middle_and_fills_with_black():
    image = BLACK[:, None, None].expand(3, 31, 31).clone()
    image[:, 15, 25] = 9.0
    keys = torch.arange(200)
    out = augment("flip-rotate", image.expand(200, 3, 31, 31), keys, BLACK)
    weight = (out - BLACK[:, None, None])[:, 0]
    grid = torch.arange(31.0) - 15
    total = weight.sum((1, 2))
    column = (weight.sum(1) * grid).sum(1) / total
    row = (weight.sum(2) * grid).sum(1) / total
    angle = torch.rad2deg(torch.atan2(row, column.abs()))
    torch.testing.assert_close((row**2 + column**2).sqrt(), torch.full((200,), 10.0), atol=0.15, rtol=0)
    assert angle.abs().max() <= 30.5
    assert angle.min() < -25
    assert angle.max() > 25
    assert 70 < int((column < 0).sum()) < 130


def test_rotation_keeps_a_uniform_oblong_image_uniform_inside():
    x = torch.ones(50, 3, 21, 41) * BLACK[:, None, None] + 1
    out = augment("flip-rotate", x, torch.arange(50), BLACK)
    torch.testing.assert_close(out[:, :, 7:14, 16:25], x[:, :, 7:14, 16:25])
    assert torch.all((out[:, 1, 0, 0] - 0.5 < 0.999).sum() > 25), "corners were turned in from outside"


@pytest.mark.parametrize("name", ["flip", "flip-rotate", "crop-flip"])
@pytest.mark.parametrize("channels_last", [True, False])
def test_a_sample_depends_on_its_own_key_only(name, channels_last):
    x, keys = batch(channels_last=channels_last)
    together = augment(name, x.unflatten(0, (4, 10)), keys.view(4, 10), BLACK)
    assert together.shape == (4, 10, 3, 9, 7)
    assert (together.stride(-3) == 1) == channels_last
    for place in (0, 13, 39):
        alone = augment(name, x[place : place + 1], keys[place : place + 1], BLACK)
        assert torch.equal(alone[0], together.flatten(0, 1)[place])
    assert not torch.equal(together, augment(name, x.unflatten(0, (4, 10)), keys.view(4, 10) + 1, BLACK))


@pytest.mark.parametrize("name", ["flip", "flip-rotate", "crop-flip"])
def test_an_image_of_one_pixel(name):
    x = torch.full((5, 3, 1, 1), 7.0)
    assert augment(name, x, torch.arange(5), BLACK).shape == x.shape


def test_resized_crops_are_parts_of_the_image_stretched_to_its_size():
    """On an image of coordinates, every pixel tells where it came from."""
    height, width = 32, 24
    rows, columns = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    x = torch.stack([rows, columns, torch.zeros(height, width)]).expand(300, 3, height, width).contiguous()
    out = augment("resized-crop-flip", x, torch.arange(300) * 7919, BLACK)
    assert out.shape == x.shape
    areas, ratios, flipped = [], [], 0
    for image in out:
        middle = image[:, 4:-4, 4:-4]  # away from the edge, where the outermost pixel is repeated
        down = middle[0].diff(dim=0)
        right = middle[1].diff(dim=1)
        torch.testing.assert_close(down, down[:1, :1].expand_as(down), rtol=0, atol=1e-3)
        torch.testing.assert_close(right, right[:1, :1].expand_as(right), rtol=0, atol=1e-3)
        flipped += int(right[0, 0] < 0)
        h, w = down[0, 0].item() * height, abs(right[0, 0].item()) * width
        assert abs(h - round(h)) < 0.02
        assert abs(w - round(w)) < 0.02
        areas.append(h * w / (height * width))
        ratios.append(w / h)
        assert image[0].min() >= 0.5
        assert image[0].max() <= height - 0.5
    assert 0.05 < min(areas) < 0.2
    assert 0.85 < max(areas) <= 1
    assert 0.68 < min(ratios) < 0.85
    assert 1.2 < max(ratios) < 1.45
    assert 120 < flipped < 180


def test_a_crop_that_never_fits_is_the_largest_central_part():
    x = torch.arange(2 * 64.0).view(1, 1, 2, 64)
    out = augment("resized-crop-flip", x, torch.tensor([5]), torch.zeros(1))
    assert 29 < out.min() % 64 < 35  # 3 of the 64 columns around the middle
